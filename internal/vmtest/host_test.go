package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMirrorsAreDebians(t *testing.T) {
	m := parseMirrors(`https://example.org/cloud-apt
http://mirror.example/debian-security/
http://mirror.example/debian/
http://mirror.example/debian/
http://other.example/debian
http://mirror.example/ubuntu/
`)
	require.Equal(t, mirrors{main: "http://mirror.example/debian", security: "http://mirror.example/debian-security"}, m)
	require.Zero(t, parseMirrors("http://mirror.example/ubuntu/\n"))
}

func TestSources(t *testing.T) {
	suites := []string{"trixie", "trixie-security"}
	m := mirrors{main: "http://a/debian", security: "http://a/debian-security"}
	require.Equal(t, `deb [arch=amd64 target=Packages signed-by=/k.gpg] http://a/debian trixie main
deb [arch=amd64 target=Packages signed-by=/k.gpg] http://a/debian-security trixie-security main
`, m.sources(suites, "/k.gpg"))
	m.security = ""
	require.NotContains(t, m.sources(suites, "/k.gpg"), "security")
}

func TestKernelPackagesAmongDependencies(t *testing.T) {
	const tree = `linux-image-cloud-amd64
  Depends: linux-image-7.3.4+deb13-cloud-amd64
  Depends: linux-modules-cloud-amd64
linux-image-7.3.4+deb13-cloud-amd64
  PreDepends: linux-base
  Depends: linux-binary-7.3.4+deb13-cloud-amd64
  Depends: <linux-initramfs-tool>
  Depends: linux-modules-7.3.4+deb13-cloud-amd64
`
	require.Equal(t, []string{
		"linux-image-7.3.4+deb13-cloud-amd64", "linux-image-7.3.4+deb13-cloud-amd64",
		"linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64",
	}, kernelPackage.FindAllString(tree, -1))
}

func TestPackageVersion(t *testing.T) {
	debs := []string{"/x/linux-image-6.1.0-57-cloud-amd64_6.1.192-3_amd64.deb"}
	version, err := packageVersion(debs, "6.1")
	require.NoError(t, err)
	require.Equal(t, "6.1.192", version)
	_, err = packageVersion(debs, "6.12")
	require.ErrorContains(t, err, "6.1.192 instead")
	_, err = packageVersion([]string{"/x/linux-image-7_7.30.1-1~bpo13+1_amd64.deb"}, "7.3")
	require.ErrorContains(t, err, "7.30.1 instead")
	_, err = packageVersion(nil, "7")
	require.ErrorContains(t, err, "no package")
}

func TestWantedModules(t *testing.T) {
	for path, want := range map[string]bool{
		"kernel/net/netfilter/nf_tables.ko":        true,
		"kernel/net/netfilter/ipvs/ip_vs.ko.xz":    true,
		"kernel/drivers/net/dummy.ko.zst":          true,
		"kernel/lib/libcrc32c.ko":                  true,
		"kernel/drivers/gpu/drm/drm.ko":            false,
		"kernel/fs/ext4/ext4.ko.xz":                false,
		"kernel/net/netfilter/nf_tables.ko.sig":    false,
		"modules.order":                            true,
		"modules.builtin.modinfo":                  true,
		"modules.dep":                              false,
		"vmlinuz":                                  false,
		"kernel/net/netfilter/README":              false,
		"build/kernel/net/netfilter/nf_tables.ko":  false,
		"kernel/net/ipv4/netfilter/iptable_nat.ko": true,
	} {
		require.Equal(t, want, wantedModule(path), path)
	}
}

func TestGlobOne(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/lib/modules/7.3.4"), 0o755))
	found, err := globOne(dir, "lib/modules/*", "usr/lib/modules/*")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "usr/lib/modules/7.3.4"), found)
	_, err = globOne(dir, "boot/vmlinuz-*")
	require.ErrorContains(t, err, "boot/vmlinuz-*")
}

func TestStoreGivesWhatIsThere(t *testing.T) {
	s := store{dir: t.TempDir(), note: t.Logf}
	dir := filepath.Join(s.dir, "6.1")
	require.NoError(t, os.Mkdir(dir, 0o755))
	_, err := s.get(t.Context(), kernelSources[0])
	require.ErrorContains(t, err, "damaged (remove "+dir+")")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "version"), []byte("6.1.192\n"), 0o644))
	k, err := s.get(t.Context(), kernelSources[0])
	require.NoError(t, err)
	require.Equal(t, kernel{version: "6.1.192", image: dir + "/vmlinuz", root: dir + "/root"}, k)
}

func TestLockIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = lockFile(ctx, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	unlock()
	unlock, err = lockFile(t.Context(), path)
	require.NoError(t, err)
	unlock()
}

func TestMissingPackages(t *testing.T) {
	all := func(need) bool { return true }
	require.Empty(t, missing(needs, all))
	without := func(absent ...string) []string {
		return missing(needs, func(n need) bool {
			for _, a := range absent {
				if n.tool == a || n.file == a {
					return false
				}
			}
			return true
		})
	}
	require.Equal(t, []string{"kmod"}, without("depmod", "lsmod"), "each once")
	require.Equal(t, []string{"qemu-system-x86", "netbase"}, without(qemuCommand, "/etc/services"))
	require.Empty(t, without(keyrings[0]), "one keyring will do")
	require.Equal(t, []string{"debian-archive-keyring"}, without(keyrings...))
}

func TestParseListAndPlaces(t *testing.T) {
	packages, err := parseList(`{"Dir": "/m/a/b", "ImportPath": "x/a/b", "TestGoFiles": ["a_test.go"], "Module": {"Dir": "/m"}}
{"Dir": "/m", "ImportPath": "x", "Module": {"Dir": "/m"}}
{"Dir": "/m/c", "ImportPath": "x/c", "XTestGoFiles": ["c_test.go"]}
`)
	require.NoError(t, err)
	require.Len(t, packages, 3)
	require.True(t, packages[0].hasTests())
	require.False(t, packages[1].hasTests())
	require.True(t, packages[2].hasTests())
	require.Equal(t, "/module/a/b", guestDir(packages[0]))
	require.Equal(t, "/module", guestDir(packages[1]))
	require.Equal(t, "/module/x/c", guestDir(packages[2]))
	_, err = parseList("{")
	require.ErrorContains(t, err, "go list")
}

func TestPayload(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "0", "p.test")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, nil, 0o755))
	data := filepath.Join(dir, "testdata")
	require.NoError(t, os.Mkdir(data, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(data, "golden"), nil, 0o644))
	tr := tree{}
	tasks, err := tr.addPayload([]binary{{name: "m/p", file: file, guestDir: "/module/p", testdata: data, test: true}}, []string{"-x"})
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	require.Equal(t, "/module/p/p.test", tasks[0].Path)
	require.Equal(t, "/module/p", tasks[0].Dir)
	require.Equal(t, []string{"-x"}, tasks[0].Args)
	require.True(t, tasks[0].Timeout && tasks[0].Merge)
	require.Equal(t, file, tr["/module/p/p.test"].source)
	require.Equal(t, data+"/golden", tr["/module/p/testdata/golden"].source)
}

func TestCommandTellsWhatWentWrong(t *testing.T) {
	out, err := command{name: "sh", args: []string{"-c", "echo $A; pwd"}, dir: "/", env: []string{"A=b"}}.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "b\n/\n", out)
	_, err = command{name: "sh", args: []string{"-c", "echo out; echo complaint >&2; exit 3"}}.run(t.Context())
	require.ErrorContains(t, err, "exit status 3\ncomplaint\nout")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = command{name: "sleep", args: []string{"60"}}.run(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// The tree's own shell stands for all tools: with its linker and libraries and
// nothing else it must be complete.
func TestLibrariesAreComplete(t *testing.T) {
	tr := tree{}
	program, err := tr.addTool("sh")
	require.NoError(t, err)
	require.NoError(t, tr.addLibraries([]string{program}))
	var libc, linker bool
	for p := range tr {
		libc = libc || strings.HasSuffix(p, "/libc.so.6")
		linker = linker || strings.Contains(p, "/ld-linux")
	}
	require.True(t, libc, "%v", tr)
	require.True(t, linker, "%v", tr)
	_, err = findLibrary("libabsent.so.1")
	require.ErrorContains(t, err, "libabsent.so.1 not found")
}
