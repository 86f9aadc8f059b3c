//go:build windows

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// host is what csi-proxy finds below its servers: file system and SMB of a Windows host. Wine makes no links, so they are in a file that the test
// reads and writes too. Everything else is Wine's file system.
type host struct {
	file string // JSON: path of a link -> what it leads to

	mu     sync.Mutex
	mapped map[string]bool // shares, until the host restarts
}

// links returns the links of the host.
func (h *host) links() (map[string]string, error) {
	links := map[string]string{}
	data, err := os.ReadFile(h.file)
	if errors.Is(err, fs.ErrNotExist) {
		return links, nil
	}
	if err != nil {
		return nil, err
	}
	return links, json.Unmarshal(data, &links)
}

// change changes the links of the host.
func (h *host) change(f func(links map[string]string) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	links, err := h.links()
	if err != nil {
		return err
	}
	before := maps.Clone(links)
	if err := f(links); err != nil || maps.Equal(before, links) {
		return err
	}
	data, err := json.Marshal(links)
	if err != nil {
		return err
	}
	return os.WriteFile(h.file, data, 0o600)
}

// key is the name of a path in the table: Windows ignores the case of letters, and a separator at the end.
func key(path string) string { return strings.ToLower(strings.TrimRight(path, `\`)) }

// link makes a link, as mklink and New-Item do: not over what is there, and only in a directory that is there.
func (h *host) link(target, path string) error {
	return h.change(func(links map[string]string) error {
		if _, err := os.Lstat(path); err == nil || links[key(path)] != "" {
			return fmt.Errorf("symlink %s %s: %w", target, path, fs.ErrExist)
		}
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return fmt.Errorf("symlink %s %s: %w", target, path, err)
		}
		links[key(path)] = target
		return nil
	})
}

// PathExists implements filesystem.API.
func (h *host) PathExists(path string) (bool, error) {
	if linked, err := h.IsSymlink(path); err != nil || linked {
		return linked, err
	}
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// PathValid implements filesystem.API: a share answers as long as it is mapped.
func (h *host) PathValid(path string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mapped[path], nil
}

// Mkdir implements filesystem.API.
func (*host) Mkdir(path string) error { return os.MkdirAll(path, 0o755) }

// Rmdir implements filesystem.API: of a link it removes nothing but that.
func (h *host) Rmdir(path string, force bool) error {
	was := false
	err := h.change(func(links map[string]string) error {
		_, was = links[key(path)]
		delete(links, key(path))
		return nil
	})
	if err != nil || was {
		return err
	}
	if force {
		return os.RemoveAll(path)
	}
	return os.Remove(path)
}

// RmdirContents implements filesystem.API.
func (*host) RmdirContents(string) error { return errors.ErrUnsupported }

// CreateSymlink implements filesystem.API.
func (h *host) CreateSymlink(target, path string) error { return h.link(target, path) }

// IsSymlink implements filesystem.API.
func (h *host) IsSymlink(path string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	links, err := h.links()
	_, linked := links[key(path)]
	return linked, err
}

// IsSmbMapped implements smb.API.
func (h *host) IsSmbMapped(remote string) (bool, error) { return h.PathValid(remote) }

// NewSmbLink implements smb.API. The share's name gets a separator at its end, as in csi-proxy's call of PowerShell.
func (h *host) NewSmbLink(remote, local string) error {
	if valid, err := h.mappedShare(remote); err != nil || !valid {
		return errors.Join(err, fmt.Errorf("New-Item: cannot find %s", remote)) //nolint:staticcheck // PowerShell's name
	}
	return h.link(strings.TrimSuffix(remote, `\`)+`\`, local)
}

// mappedShare reports whether the share of a path is mapped.
func (h *host) mappedShare(path string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for share := range h.mapped {
		if strings.HasPrefix(key(path)+`\`, key(share)+`\`) {
			return true, nil
		}
	}
	return false, nil
}

// NewSmbGlobalMapping implements smb.API.
func (h *host) NewSmbGlobalMapping(remote, user, password string) error {
	if user == "" || password == "" {
		return fmt.Errorf("New-SmbGlobalMapping %s: access is denied", remote) //nolint:staticcheck // PowerShell's name
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mapped[remote] = true
	return nil
}

// RemoveSmbGlobalMapping implements smb.API.
func (h *host) RemoveSmbGlobalMapping(remote string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mapped[remote] {
		return fmt.Errorf("Remove-SmbGlobalMapping: no mapping of %s", remote) //nolint:staticcheck // PowerShell's name
	}
	delete(h.mapped, remote)
	return nil
}
