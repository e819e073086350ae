package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
)

// addLibraries places the dynamic linker and the shared libraries that the
// host's programs need, and those that they need in turn.
func (t tree) addLibraries(programs []string) error {
	seen := map[string]bool{}
	for queue := programs; len(queue) > 0; queue = queue[1:] {
		file := queue[0]
		wanted, err := linkedFiles(file)
		if err != nil {
			return err
		}
		for _, name := range wanted {
			if seen[name] {
				continue
			}
			seen[name] = true
			found, err := findLibrary(name)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			// Under the name asked for; the file may be called differently.
			if err := t.copy(found, found); err != nil {
				return err
			}
			queue = append(queue, found)
		}
	}
	return nil
}

// linkedFiles returns the names that a program or library wants linked, and
// the path of its dynamic linker; nothing for a static one.
func linkedFiles(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	names, err := f.ImportedLibraries()
	if errors.Is(err, elf.ErrNoSymbols) {
		err = nil
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && err == nil {
			linker := make([]byte, p.Filesz)
			if _, err = p.ReadAt(linker, 0); err == nil && len(linker) > 0 {
				names = append(names, string(linker[:len(linker)-1]))
			}
		}
	}
	return names, err
}

// libraryDirs are where the dynamic linker looks without being told, Debian's
// first.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib", "/lib64", "/usr/lib64"}

func findLibrary(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for _, dir := range libraryDirs {
		if p := filepath.Join(dir, name); exists(p) {
			return p, nil
		}
	}
	return "", fmt.Errorf("library %s not found", name)
}
