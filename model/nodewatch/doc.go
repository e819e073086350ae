// Package nodewatch follows the addresses of a node, so that node ports answer on an address soon after it has come.
//
// A [Watcher] listens to the kernel (rtnetlink) in one network namespace. Whenever an address comes or goes it lists
// all of them anew, a moment later, since they come in swarms: what it tells is never put together from events, and an
// event that was lost, because too many came at once, costs nothing.
//
//	watcher, err := nodewatch.New(nodewatch.Config{})
//	syncer := model.NewSyncer(programmer, model.SyncerConfig{Nodes: watcher})
//
// It tells the addresses of all interfaces, up or down, in both families, but for loopback, for those that IPv6 has not
// yet found to be unique or found not to be, and for IPv6 link-local ones, which mean nothing without their link.
//
// It writes nothing and needs no privilege, but to enter another namespace than that of the calling thread
// (CAP_SYS_ADMIN). It works on every Linux that Go does, and on nothing else. It starts no goroutine of its own.
package nodewatch
