package netns

import (
	"errors"
	"os"
	"strings"

	"github.com/headgate/headgate/model"
)

// SysctlPath returns the file that stands for a sysctl, by the name that sysctl(8) takes.
func SysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// ReadSysctl returns a sysctl of the calling thread's namespace, see [NetNS.Do]; "" if there is none.
func ReadSysctl(name string) (string, error) {
	b, err := os.ReadFile(SysctlPath(name))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// WriteSysctl sets a sysctl of the calling thread's namespace.
func WriteSysctl(name, value string) error {
	f, err := os.OpenFile(SysctlPath(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Zeros finds those of some sysctls of the calling thread's namespace that are 0 and should not be. One that is not
// there keeps nobody from anything.
func Zeros(names ...string) (found []model.Finding, err error) {
	for _, name := range names {
		switch value, err := ReadSysctl(name); {
		case err != nil:
			return nil, err
		case value == "0":
			found = append(found, model.Finding{What: name, Err: errors.New("is 0"), Remedy: "sysctl -w " + name + "=1"})
		}
	}
	return found, nil
}
