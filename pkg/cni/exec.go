package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/winkube/winkube/pkg/command"
)

// runner implements libcni's invoke.Exec with package command, which kills a plugin together with its descendants.
type runner struct{ version.PluginDecoder }

var _ invoke.Exec = (*runner)(nil)

// idVariable identifies the container in a plugin's environment; child processes inherit it.
const idVariable = "CNI_CONTAINERID"

func mark(id string) string { return idVariable + "=" + id }

// maxShown is the maximum length of a plugin's output in an error, in bytes.
const maxShown = 200

// ExecPlugin runs a plugin with exactly that environment and returns its output, which is JSON or empty.
func (*runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("plugin %q: want an absolute path", path)
	}
	out, err := family(environ).Run(ctx, stdin, path)
	out = bytes.TrimSpace(out)
	switch exit := new(command.ExitError); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &exit):
		printed := &types.Error{}
		if json.Unmarshal(out, printed) == nil && printed.Msg != "" {
			return nil, printed
		}
		return nil, err
	case err != nil:
		return nil, err
	case len(out) > 0 && !json.Valid(out):
		return nil, fmt.Errorf("%s printed something other than JSON: %q", path, shorten(out))
	}
	return out, nil
}

// family returns the Runner for one call, which marks processes with the container. A call without a container uses an empty ID.
func family(environ []string) command.Runner {
	rest, id := make([]string, 0, len(environ)), ""
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, idVariable+"="); ok {
			id = value
			continue
		}
		rest = append(rest, v)
	}
	if id == "" {
		return command.NewPrivate(append(rest, mark("")))
	}
	return command.NewFamily(rest, mark(id))
}

func shorten(data []byte) string {
	if len(data) > maxShown {
		return string(data[:maxShown]) + "..."
	}
	return string(data)
}

// FindInPath finds a plugin in dirs.
func (*runner) FindInPath(plugin string, dirs []string) (string, error) {
	return invoke.FindInPath(plugin, dirs)
}
