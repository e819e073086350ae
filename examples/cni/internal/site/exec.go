package site

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/headgate/headgate/internal/lab"
)

// inNode makes libcni run plugins in the node's network namespace. It implements invoke.Exec.
type inNode struct {
	node *lab.NetNS
	version.PluginDecoder
}

var _ invoke.Exec = (*inNode)(nil)

// ExecPlugin runs a plugin. If it fails the error is a *types.Error where the plugin printed one.
func (e *inNode) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := e.node.Command(ctx, path)
	cmd.Stdin, cmd.Env = bytes.NewReader(stdin), environ
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	var told types.Error
	if json.Unmarshal(out, &told) == nil && told.Msg != "" {
		return nil, &told
	}
	return nil, errors.Join(fmt.Errorf("%s: %w", path, err), errors.New(strings.TrimSpace(string(out))))
}

// FindInPath finds a plugin.
func (e *inNode) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}
