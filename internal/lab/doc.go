// Package lab builds small networks out of network namespaces and sends real packets through them, so
// that a test can tell what the kernel does with the rules under test. It uses the kernel's own sockets on all
// sides; package peers below it plays all sides itself, for tests that ask thousands of questions.
//
// A NetNS is an anonymous network namespace. Do runs a function in it, Command a program; Socket, Listen, ListenPacket
// and DialContext make sockets in it that work from any goroutine; Sysctl and Netlink configure it.
//
// A Topology is a node (the namespace for the rules under test) with hosts around it: pods, far hosts, and a wire
// that swallows what leaves the node for nowhere. Build makes one from a Spec in some 50 ms; it may serve
// many tests, one after the other or at once. Addresses that exist nowhere, as virtual ones do, lead to the node.
//
// A Server tells whoever asks who it is and whom it saw, over TCP, UDP or SCTP: NetNS.Serve, or Topology.Serve, which
// finds the namespace by the address.
//
// To ask:
//
//   - Topology.Ask puts one question from a source address and says what became of the packet: Answered, Refused,
//     Dropped, Passed (not translated) or Unanswered (translated, but nothing came back). ICMP echo too.
//   - AskMany puts the same one many times and counts who answered.
//   - Open keeps a connection or flow, and Flow.Ping asks over it whether it is still alive and with the same server.
//   - Load keeps connections coming while something changes, and reports every failure, every lost SYN
//     and every open flow that was cut or moved.
//   - Inject sends packets that no socket would, and Sniff shows what enters and leaves a namespace.
//
// For tests there are Start, StartNetNS and Serve, which clean up at the test's end, and CheckLeaks, which
// finds what was not. NetNS.Ask and the like ask from one namespace without looking at a node.
//
// Nothing of all this has a name outside of the process: when the process ends, in whatever way, the kernel
// removes it. The package needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW), Linux 6.1 and /proc.
// Everything is safe for concurrent use unless it says otherwise.
package lab
