// Package model says what shall be balanced, in terms that every backend understands, and how a backend is driven.
//
// A [Service] is a set of virtual addresses, its frontends; its [Endpoint] values are the real servers behind them.
// A [State] is all of them together with the [Node] whose kernel is programmed. A [Tracker] gathers changes and yields
// them as a [Diff]; a [Programmer] makes the kernel hold a State, and then applies one Diff after another:
//
//	changes → Tracker → State or Diff → Programmer → kernel
//
// The packages nftables, iptables and ipvs each have a Programmer. Inside, each hands what it is given to a
// [Resolver], which checks, normalises, settles conflicts between services and calls [Select], so that all backends
// mean the same; package modeltest has the suite that they all pass.
//
// # Bad input
//
// A service that makes no sense, or that a backend cannot do, is rejected by name in the [Result]; it stays as it was
// last programmed, and everything else is programmed. An endpoint that makes no sense is left out and reported. If
// several services claim one frontend, the one that has it keeps it, a free one goes to the first by name; the others
// are reported with [ErrConflict], do without that frontend alone, and get it when the holder goes.
//
// # Concurrency
//
// A Tracker and a Programmer are safe for concurrent use. Everything else here is a value or a pure function.
//
// The package imports the standard library alone and touches no kernel.
package model
