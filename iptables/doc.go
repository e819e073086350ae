// Package iptables makes the kernel balance services by way of the iptables programs, of either variant: legacy or
// nf_tables, which it detects. Use it where the host's firewall is iptables; package nftables does the same with less.
//
// # Shape
//
// A search tree of chains finds the frontend by address, protocol and port, or the node port by protocol and port, so
// that the first packet of a connection passes some 40 rules whether there are ten services or ten thousand:
//
//	nat PREROUTING, OUTPUT ─ SERVICES ─┬─ T tree ──┬─ (F sources) ─ I or E ─ marks ─ endpoints ─ DNAT
//	                                   └─ P tree ──┘
//	nat POSTROUTING ───────── POSTROUTING ─ MASQUERADE what is marked, and endpoints that reach themselves
//	filter INPUT, FORWARD,    FILTER ─┬─ V tree, Q tree ─ REJECT or DROP (by way of W: sources)
//	       OUTPUT                     └─ O tree ─ REJECT other ports of internal addresses
//	filter FORWARD, at the end ─ FORWARD ─ ACCEPT what was balanced
//
// Every name has the prefix of the [Config]; the comments name the services. One service has one chain for its internal frontends
// and one for the others, and in them one rule for each endpoint; beyond 16 endpoints they are trees too.
//
// # Promises
//
//   - Own chains and own jump rules only, told by prefix and comment. Chains of others are neither saved nor restored,
//     listed or not: rules that this version of iptables cannot show are no obstacle.
//   - An Apply is one iptables-restore --noflush for each family, with the chains that change. Each table changes in one
//     transaction. Two tables do so one after the other: walls first when they are put up, last when they are taken
//     down, so that no packet falls in between.
//   - A Sync reads the tables and writes only the chains that differ, so a restart with the same state writes nothing.
//     It makes no connection, affinity or turn begin anew.
//   - The variant that is not used is cleaned of rules with our prefix after the first Sync.
//   - No lock is taken here; the programs wait for theirs (ErrBusy if in vain), and are killed when the context ends.
//   - No sysctl is set unless SetSysctls says so, no module is loaded but by the kernel itself.
//
// [Programmer.Explain] names the rules that a packet meets. By hand: iptables-save -t nat | grep default/web leads to the
// chains of a service; iptables -t nat -vnL with the name of one of them counts its connections.
//
// What a legacy table costs to change follows its size: the kernel takes and gives whole tables. Gather changes, as
// model.Syncer does.
//
// # Requirements
//
// iptables 1.6.2 or later; the nf_tables variant needs 1.8. Linux 5.4 or later. What the kernel can do is tried when a
// Programmer is made. Without xt_bpf there is no SourceHash and no Maglev, and a tree finds the endpoints that reach
// themselves; without xt_connlabel see [Programmer.Features].
//
// A Programmer is safe for concurrent use. It needs to be root, to whom the lock /run/xtables.lock and the kernel's list
// of tables belong, though of root's capabilities CAP_NET_ADMIN suffices, in the legacy variant with CAP_NET_RAW; what a
// process lacks, New names. CAP_SYS_ADMIN is needed besides for a namespace other than that of the process, and to try
// what the kernel can do; without it Probe warns.
package iptables
