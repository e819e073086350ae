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
// # Which entry point
//
//   - [Syncer]: for a program that lives on a node. It takes changes from any goroutine, and sees to the rest: it gathers
//     and programs them, tries again after failures, checks and repairs the kernel, cleans connection tracking, and says how
//     each service stands. Begin here.
//   - [Tracker] and a Programmer: for a program that has its own loop and its own idea of when to write.
//   - A Programmer alone: for a tool that makes the kernel hold a State once, and ends.
//   - [Resolver], Select and package modeltest: for authors of a backend.
//
// A Syncer writes nothing before the state is complete ([Syncer.Replace], [Syncer.Ready]), so that a restart takes nothing
// away that is still wanted. It stops with its context and leaves the rules in place. [FirstSupported] chooses a backend
// that can work here; [Syncer.Switch] moves a node to another one, and the open connections go on. An [Explainer], which
// every backend is, answers what becomes of a connection, and by which rules.
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
// A Tracker, a Programmer and a Syncer are safe for concurrent use, a Resolver is not. Everything else here is a value or
// a pure function.
//
// The package imports the standard library alone and touches no kernel.
package model
