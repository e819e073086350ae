// Package lab builds small networks out of network namespaces and sends real packets through them, so
// that a test can tell what the kernel does with the rules under test.
//
//	topo := lab.Start(t, lab.Spec{
//		Node: []netip.Addr{node},
//		Hosts: []lab.Host{
//			{Name: "a", Addrs: []netip.Addr{podA}},
//			{Name: "outside", Place: lab.Far, Addrs: []netip.Addr{client}},
//		},
//	})
//	lab.Serve(t, topo, lab.TCP, netip.AddrPortFrom(podA, 8080))
//	// ... program rules in topo.Node ...
//	answer, err := topo.Host("outside").Ask(ctx, lab.Query{Proto: lab.TCP, To: vip})
//	// answer.Verdict == lab.Answered, answer.Name == "10.128.0.11:8080", answer.Peer is whom it saw
//
// The parts:
//
//   - NetNS is an anonymous network namespace: Do, Command, Socket, Listen, Sysctl, Netlink.
//   - Topology is a node with pods, far hosts and a wire that swallows what nobody wanted.
//   - Server answers "who am I and whom did I see" over TCP, UDP and SCTP.
//   - Ask puts one question over a fresh connection.
//
// Nothing of it has a name outside of the process: when the process ends, in whatever way, the kernel
// removes it all. The package needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW), Linux 6.1 and /proc.
// Everything is safe for concurrent use unless it says otherwise.
package lab
