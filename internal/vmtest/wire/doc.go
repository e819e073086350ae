// Package wire is what the host and the guest of a test machine say to each
// other: a Job, which the host lays into the machine's file system, and
// frames, which the guest sends back over a serial line while it works.
//
// The line carries bytes as they are (the guest sets it raw) and in order. It
// has no checksum: QEMU's serial port does not lose or change bytes, and a
// frame that cannot be (unknown kind, absurd length) ends the conversation
// with an error.
package wire
