// Package nftables programs services with nftables, over netlink and without the nft binary.
//
// All of it is in one table of each family, ip and ip6, which the Programmer owns. Services are elements of a few
// maps, not chains of their own: a full Sync is a few large messages, a change a few elements, and a packet's way takes
// two look-ups however many services there are. Everything is in chains of type nat, so that packets of established
// connections meet none of it. Read it with nft list table ip headgate; the elements carry the services' names.
//
// # What it promises
//
// A Sync or an Apply is one transaction for both families: no packet meets half of it. Endpoints stand in numbered
// slots, some of them empty, of which one is drawn for a connection; who draws an empty one draws again. A Sync after a
// restart refills the maps in place, changes of the sets of ranges what differs, and leaves the maps of clients alone,
// so that connections and affinity live on.
//
// Each share of weight is a slot, and each slot a set element for each frontend, once the weights of a list are divided by
// what all have in common. Up to 1,000 in all they are exact; beyond that Random and RoundRobin scale them down, to a slot
// each at least: 1 beside 65,535 gets one connection in a thousand. 9 and 1 cost 10 elements, 900 and 101 cost 1,001.
// SourceHash and Maglev take twenty slots or more for each share: 900 and 101 fill 65,521. So keep weights small.
//
// # What it refuses
//
// LeastConn, and hashing over a total weight above 3,276, per service. It sets no packet mark: two bits of the
// connection label carry what postrouting must know.
//
// # What it needs
//
// Linux 5.10 or later and CAP_NET_ADMIN. A forward hook of somebody else whose policy is drop stops balanced
// connections, whatever is accepted here; Probe names it and the rule that the administrator needs.
package nftables
