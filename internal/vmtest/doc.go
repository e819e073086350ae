// Command vmtest runs tests, or one program, in a virtual machine with a stock
// Debian kernel: what headgate promises for kernels that nobody has at hand, and
// for IPVS, SCTP and legacy iptables, which many hosts lack, is tried on them.
//
//	go run ./internal/vmtest [-kernel 6.1|6.12|7|all] [-run regexp] [-v] ./nftables ./ipvs
//	go run ./internal/vmtest [-kernel 6.1] -program ./internal/bench -- -backend ipvs
//	go run ./internal/vmtest -prepare -kernel all
//
// It needs an amd64 Debian, or something close to it. As root it installs the
// packages that it misses, otherwise it names them. Kernels are downloaded by
// apt with sources of its own, unpacked into the user's cache directory and
// never installed; remove that directory to get newer ones. The machine runs
// under KVM where there is one and is emulated, much slower, where there is not.
//
// # In the guest
//
// There is one file system, in memory, made for the run:
//
//   - The stock tools with their libraries: ip, tc, ss, nft, conntrack, ipset,
//     ipvsadm, iptables and ip6tables in both variants (the unadorned names are
//     nf_tables, as in Debian) with -save and -restore, modprobe. /bin/sh is dash,
//     everything else is busybox. There is no Go and no source.
//   - All of the kernel's networking modules. The kernel loads them when they are
//     asked for; those that nothing asks for are loaded at boot.
//   - The tests, built without cgo (so without the race detector), each in its
//     package's place below /module with its testdata. A test that needs other
//     files skips itself where HEADGATE_VM is set.
//
// Environment: HEADGATE_VM=1, the usual PATH, and what -env says. Tests run as
// root in the machine's first network namespace, one package after the other.
//
// # What comes of it
//
// The exit status is 0 only if every package's tests ended with status 0 and the
// guest said that it was done. A guest whose kernel panics (an oops is a panic
// here), hangs or ends early fails, and the end of its console is shown. A guest
// that does not come up is started once more; one that had begun is not. With
// -program the status is the program's own, and its two streams are ours.
//
// Shortly before -timeout is over a hanging test binary is stopped by its own
// -test.timeout, which names the test; anything else gets SIGQUIT; then the
// machine is ended.
//
// SIGINT, SIGTERM and SIGHUP end the machine and remove what was made. Even
// after SIGKILL no QEMU is left, but the directory of built tests is. Several
// runs may go on at the same time; they share nothing but the kernels.
//
// # How it works
//
//	config ── tools, kernel (apt, modules) ── build ── image (tree, cpio, libraries)
//	                                                      │
//	     report, testlog ◁── boot ◁══ wire over ttyS1 ══ guest, in QEMU
//	                                  console, ttyS0: shown if the guest dies
//
// The guest's first program is ./guest; ./wire is what the two say to each
// other.
package main
