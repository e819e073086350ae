// Package peers pretends to be everybody around a node, so that a test learns what the node's kernel does with a packet
// without waiting for anything.
//
// The node is a network namespace with a real kernel in it: its routes, its connection tracking, the rules under test.
// Its links are TUN devices whose other ends are in this process, which plays all pods, other nodes, clients and
// servers, at whatever address and port a packet names:
//
//	  this process                       the node's namespace
//	pods on the node     ---- veth-pod [                       ]
//	everybody else       ---- uplink   [  rules, conntrack, …  ] raw sockets see what is delivered to the node itself,
//	(the default route)                [                       ] and send what the node sends
//
// A packet written to a TUN device has been through the kernel when write returns, and so has what the kernel says
// about it: whatever is to be seen of it is there to be read. Loopback is the one queue on the way; a frame sent after
// a packet, which must come out behind it, shows when that is empty. Hence a packet that shows up nowhere was dropped,
// and neither a slow nor a busy machine changes that. There are no timeouts but for the loss of such a frame.
//
// The endpoint that a question reaches answers it, so that the way back is tried as well: translation undone,
// checksums right.
//
// The package needs root, /dev/net/tun and Linux 6.1.
package peers
