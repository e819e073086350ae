// Package nlink exchanges netlink messages with the kernel: many to a buffer, each error traced to its message, and a
// deadline on everything.
//
// It is below the packages that program the kernel, and knows nothing of what the messages say. Libraries that send one
// message and wait for its answer need several times as long, and cannot say which of many messages was refused.
package nlink
