// Package report passes from the proxy of a host to its kubelet what keeps this host's pods from those of other nodes. A proxy may not write Nodes
// (upstream's role system:node-proxier), and a kubelet may read no Node but its own (the Node authorizer), so the condition NetworkUnavailable
// needs both.
//
//	routes.Manager --Write--> File --Watch, Read--> network.Manager
//
// The File exists while there is something to report. It belongs to one host and does not survive a reboot of Linux; the proxy rewrites it after
// its first comparison.
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
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Trouble is one thing that keeps pods of this host from others.
type Trouble struct {
	Reason  string       `json:"reason"`      // as on Events
	Message string       `json:"message"`     // what is wrong, and what to do
	To      netip.Prefix `json:"to,omitzero"` // the pods that cannot be reached; invalid: others cannot reach those of this host
}

// File holds Troubles. The zero File has none and never changes; it must not be written.
type File string

// OfHost is the file of the host whose network this process has. Linux hosts that are network namespaces of one machine share a file system, so the
// name has the namespace.
func OfHost(windows bool) (File, error) {
	if windows {
		return `C:\var\lib\winkube-proxy\trouble`, nil
	}
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", fmt.Errorf("cannot identify the network namespace: %w", err)
	}
	return File("/run/winkube-proxy/trouble-" + strings.Trim(strings.TrimPrefix(space, "net:"), "[]")), nil
}

// Write replaces all Troubles atomically; an empty list removes the file. Idempotent.
func (f File) Write(list []Trouble) error {
	err := f.write(list)
	if err != nil {
		return fmt.Errorf("cannot report to the kubelet what blocks the way to other nodes: %w", err)
	}
	return nil
}

func (f File) write(list []Trouble) error {
	path := string(f)
	if len(list) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.MarshalIndent(list, "", "  ")
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

// Read returns all Troubles; none without a file.
func (f File) Read() ([]Trouble, error) {
	if f == "" {
		return nil, nil
	}
	data, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []Trouble
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what the proxy reports in %s: %w", f, err)
	}
	return list, nil
}

// Watch calls changed after each change until ctx ends, and returns nil then. changed must not block.
func (f File) Watch(ctx context.Context, changed func()) error {
	if f == "" {
		<-ctx.Done()
		return nil
	}
	dir := filepath.Dir(string(f))
	err := os.MkdirAll(dir, 0o755)
	var watcher *fsnotify.Watcher
	if err == nil {
		watcher, err = fsnotify.NewWatcher()
	}
	if err != nil {
		return fmt.Errorf("cannot watch %s: %w", f, err)
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("cannot watch %s: %w", f, err)
	}
	changed() // the file may have come before
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if event.Name == filepath.Clean(string(f)) {
				changed()
			}
		case <-watcher.Errors: // events may be lost
			changed()
		}
	}
}
