// Package pairs tests what concerns two backends at once: that a node is moved from any one to any other without losing
// a connection. It has no code of its own.
package pairs
