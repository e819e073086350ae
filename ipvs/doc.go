// Package ipvs programs services with IPVS, the kernel's transport-layer load balancer, over netlink and without the
// binaries ipvsadm, ip and nft. Everything of it can be read with them.
//
// A service is a virtual service for each of its frontends, an endpoint a real server of weight w that the kernel
// translates to. Virtual addresses are made local by routes with a protocol number of ours, not by addresses on a dummy
// device: no daemon takes them for addresses of the node, and what the node itself sends to them has the node's address
// as its source. Beside it, a small nftables table decides before IPVS does: who may come in, who is masqueraded, what
// is refused; it balances by itself what IPVS cannot, see below; and it lists the virtual services that are ours.
//
//	ip route show table local proto 104; ipvsadm -Ln; nft list table ip headgate-ipvs
//
// # What it promises
//
// Virtual services, real servers and routes are compared as whole objects, and those that are as they shall be are not
// touched: not by a Sync after a restart either, so that connections and affinity live on. Requests are sent many at a
// time, and a refused one is traced to its service, which alone is left out. Other people's virtual services, routes
// and rules are never touched: ours are listed in the table, and have a mark in flags that IPVS keeps and does not read,
// so that they are known again without it.
//
// There is no transaction over several virtual services, but an order: the table knows of one before it is made and
// until it is gone, and lets nothing through to it meanwhile. So no connection is ever balanced without its source ranges
// and its masquerading.
//
// # Connections that are open
//
// An endpoint that goes, drains or is not ready any more gets weight 0 at once, and is removed when it has no connection
// left or, if it is not listed any more, when [Config.DrainDeadline] has passed; with UDP at once, as nobody can tell
// when that ends. A frontend that goes stays, refusing new connections, while connections to it are open, for as long.
// [Programmer.Drain] does the removing: call it every second or so, as [model.Syncer] does. What is left to drain, and
// until when, is in the kernel: a restart goes on with it. Cleanup cuts everything; [Programmer.Retire] leaves without
// cutting.
//
// # External policy Local
//
// The virtual service has the endpoints on this node. Internal and node sources, who shall be served by all, are
// translated in the table's prerouting and output chains and never see IPVS, unless [Config.NoShortCut] is set. So are
// node ports on loopback.
//
// # What it refuses
//
// Affinity of less than a minute or more than 49 days; SourceHash over more than 256 endpoints, Maglev over more than
// 4093; a frontend at an address
// in [Config.Hosts]; a frontend where somebody else has a virtual service (an error that wraps [model.ErrConflict]). A
// scheduler that the kernel does not have is named in the error.
//
// # Affinity
//
// It is IPVS's own persistence, and less exact than elsewhere: see the differences in [Programmer.Features].
//
// # What it needs
//
// Linux 5.10 or later with the module ip_vs and those of the schedulers in use, CAP_NET_ADMIN, and the sysctl
// net.ipv4.vs.conntrack. It loads no module and sets no sysctl unless [Config.SetSysctls] says so; Probe names what is
// missing or in the way. The whole suite has passed on Linux 6.1, 6.12 and 7.3.
package ipvs
