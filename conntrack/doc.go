// Package conntrack forgets exactly the flows that a change made stale, and watches over the table that they live in.
//
// The kernel translates the first packet of a flow by the rules of that moment and remembers the answer in its
// connection tracking table. Whoever keeps sending, as UDP clients do, keeps that answer alive: an endpoint that is
// gone goes on getting packets for hours after the rules have stopped naming it. So what a change made stale must be
// deleted there, after the rules are in place:
//
//	cleaner.Applying(diff)               // before: these frontends are about to change
//	res, err := programmer.Apply(ctx, diff)
//	cleaner.Programmed(res, err)         // after: what came of it
//	_, err = cleaner.Clean(ctx)          // look for what became stale, and delete it
//
// A [Cleaner] keeps what it was told (never what it guesses) and owes cleaning until it has been done: after a failure
// of the Programmer nothing is deleted until a Sync has succeeded, and then all of it is made good; after a failure of
// Clean the next Clean tries again. Each change is looked at twice, the second time a little later (see
// [Config.SecondLook]), since a packet that met the old rules may enter the table after the first look.
//
// # What is stale
//
// A flow is judged by its protocol, its original destination and the source of its replies. It is stale if its
// destination is a frontend and its replies do not come from an address and port of an endpoint of that service which
// is Ready or Draining: the endpoint was removed or became NotReady, its port changed, or the service has no endpoints
// left. A flow to a frontend that was never translated is stale once the service has endpoints. A translated flow to a
// frontend that a change took away is stale. Policies, topology, weights and affinity do not matter: established
// flows never move.
//
// Node ports are the service's on the addresses of the node alone: a flow to the same port of another host is never
// touched, nor is one to another port or protocol of a frontend's address. The order of frontends is that of the
// rules: an address and port of its own comes before a node port.
//
// After a Sync, as at the start, all frontends are compared with the table and only mismatches go: a restart with an
// unchanged state deletes nothing. What was deleted while nobody was watching is found only with [Config.Orphans].
//
// UDP flows are cleaned, SCTP and TCP only if [Config.Protocols] asks for it.
//
// # How, and what it costs
//
// The kernel is asked with a filter of its own (CTA_FILTER), so that only the flows in question reach the process:
// one request per endpoint removed or frontend changed, whichever is less, and one request for the whole protocol
// where that would be more than a few. What it lists is judged again here, piece by piece as it arrives, and deleted
// in batches, each flow by the tuple of its replies, its zone and its id, so that one that came back in the meantime and
// leads elsewhere stays. Memory does not follow the table. A request of the kernel that deletes by filter is never sent: there is
// nothing in this package that could flush a table.
//
// The kernel's filter takes IPv6 addresses the wrong way round (see filter.sent in the source), so for IPv6 it is asked by
// protocol and port alone: the flows to the same port of other addresses are listed too, and left alone. Where the
// kernel has no such filter (before Linux 5.8), or [Config.NoKernelFilter] says so, the same happens with a listing of
// the whole family. Everything works on Linux 5.8 and later; it is tested on 6.1 and later.
//
// # Tables
//
// [Cleaner.Usage] says how full the table is, [Cleaner.Tune] sets its limit and timeouts, and [Cleaner.Flows] lists
// who talks to what through a frontend.
//
// A Cleaner works in the network namespace that [Config.NetNS] names. It is safe for concurrent use; programming need
// not wait for cleaning. It starts no goroutines and writes nothing but the deletions above and what Tune is told.
package conntrack
