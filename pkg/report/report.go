// Package report passes what only the proxy may see from a host's proxy to its kubelet: what disconnects this host's pods from those of
// other nodes, and facts of the cluster. A proxy may not write Nodes (upstream's role system:node-proxier). A kubelet may read only its own
// Node and no ServiceCIDRs (the Node authorizer). So the condition NetworkUnavailable needs both, as do Windows policies for the ranges of
// Services.
//
//	routes.Manager --Write--> File --Watch, Read--> network.Manager
//	proxy.Loop, routes.Manager --Write--> FactsFile --Watch, Read--> learn.Cluster, `kubelet doctor`
//
// A file exists while there is something to report. It belongs to one host and does not survive a reboot of Linux; the proxy rewrites it
// after its first comparison. Facts have a separate file, so that a kubelet and a proxy of different versions can work together.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/filewatch"
)

// Trouble is one problem that disconnects this host's pods from others.
type Trouble struct {
	Reason  string       `json:"reason"`      // as on Events
	Message string       `json:"message"`     // what is wrong, and what to do
	To      netip.Prefix `json:"to,omitzero"` // the pods that cannot be reached; invalid: others cannot reach the pods of this host
}

// File contains Troubles. The zero File is empty, never changes and must not be written.
type File string

// OfHost is the file for the host whose network namespace this process uses.
func OfHost(windows bool) (File, error) {
	path, err := ofHost(windows, "trouble")
	return File(path), err
}

// ofHost is the path of the named file. Linux hosts that are network namespaces of one machine share a file system, so the name includes
// the namespace.
func ofHost(windows bool, name string) (string, error) {
	if windows {
		return `C:\var\lib\winkube-proxy\` + name, nil
	}
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", fmt.Errorf("cannot identify the network namespace: %w", err)
	}
	return "/run/winkube-proxy/" + name + "-" + strings.Trim(strings.TrimPrefix(space, "net:"), "[]"), nil
}

// Write replaces all Troubles atomically; an empty list removes the file. Idempotent.
func (f File) Write(list []Trouble) error {
	err := write(string(f), list, len(list) == 0)
	if err != nil {
		return fmt.Errorf("cannot report blocked routes to other nodes to the kubelet: %w", err)
	}
	return nil
}

// write replaces a file by value, or removes it if there is nothing to report. It leaves an identical file alone.
func write(path string, value any, nothing bool) error {
	if nothing {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Read returns all Troubles; none if there is no file.
func (f File) Read() ([]Trouble, error) {
	var list []Trouble
	if err := read(string(f), &list); err != nil {
		return nil, err
	}
	return list, nil
}

// read fills value from a file; a missing file leaves it unchanged.
func read(path string, value any) error {
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, value)
	}
	if err != nil {
		return fmt.Errorf("cannot read what the proxy reports in %s: %w", path, err)
	}
	return nil
}

// Watch calls changed after each change until ctx ends, and then returns nil. changed must not block.
func (f File) Watch(ctx context.Context, changed func()) error {
	return watch(ctx, string(f), changed)
}

func watch(ctx context.Context, path string, changed func()) error {
	if path == "" {
		<-ctx.Done()
		return nil
	}
	dir := filepath.Dir(path)
	err := os.MkdirAll(dir, 0o755)
	var watcher *filewatch.Watcher
	if err == nil {
		watcher, err = filewatch.New()
	}
	if err != nil {
		return fmt.Errorf("cannot watch %s: %w", path, err)
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("cannot watch %s: %w", path, err)
	}
	changed() // the file may already exist
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Changed():
			changes, lost := watcher.Take()
			if lost != nil || slices.ContainsFunc(changes, func(c filewatch.Change) bool { return c.Path == filepath.Clean(path) }) {
				changed()
			}
		}
	}
}
