package csidriver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// store is what is on disk: DATA/volumes/ID and DATA/snapshots/ID, each with about.json and the directory content. A thing exists from its about.json
// on, which is written last and removed first.
type store struct{ dir string }

// thing is a volume or a snapshot.
type thing struct {
	ID      string
	Name    string
	Size    int64
	Source  string    // a snapshot's volume; of a volume "snapshot ID" or "volume ID" that it is a copy of, or ""
	Created time.Time // of a snapshot
	Inline  bool      // made for one pod by its publish
	Block   bool      // a block device

	Accessible []map[string]string // topologies in which a volume can be used; empty: all
}

const (
	volumes   = "volumes"
	snapshots = "snapshots"
)

// idOf is the id of what was asked for by name: the same name always gets the same.
func idOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}

// okID are ids that cannot lead elsewhere: those of idOf, and those that a kubelet makes for inline volumes (csi-HEX).
var okID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,127}$`)

func (s *store) path(kind, id string, more ...string) string {
	return filepath.Join(append([]string{s.dir, kind, id}, more...)...)
}

func (s *store) content(kind, id string) string { return s.path(kind, id, "content") }

// get reads a thing; false: there is none.
func (s *store) get(kind, id string) (thing, bool, error) {
	var t thing
	if !okID.MatchString(id) {
		return t, false, nil
	}
	data, err := os.ReadFile(s.path(kind, id, "about.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return t, false, nil
	}
	if err != nil {
		return t, false, err
	}
	return t, true, json.Unmarshal(data, &t)
}

// put makes a thing, or changes what is known of it. A new one has the content of from, if that is not "".
func (s *store) put(kind string, t thing, from string) error {
	if _, err := os.Stat(s.path(kind, t.ID, "about.json")); errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(s.path(kind, t.ID)); err != nil { // an attempt that a kill ended
			return err
		}
		if err := os.MkdirAll(s.path(kind, t.ID), 0o750); err != nil {
			return err
		}
		if err := s.fill(kind, t, from); err != nil {
			return err
		}
	}
	if t.Block && kind == volumes { // it may have grown
		if err := os.Truncate(s.image(kind, t.ID), t.Size); err != nil {
			return err
		}
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	next := s.path(kind, t.ID, "about.next")
	if err := os.WriteFile(next, data, 0o640); err != nil {
		return err
	}
	return os.Rename(next, s.path(kind, t.ID, "about.json"))
}

// fill makes the content of t, from that of another if from is not "".
func (s *store) fill(kind string, t thing, from string) error {
	content := s.content(kind, t.ID)
	if t.Block {
		if from != "" {
			from = filepath.Join(from, imageName)
		}
		return fillImage(s.image(kind, t.ID), from, t.Size)
	}
	if from != "" {
		if err := os.CopyFS(content, os.DirFS(from)); err != nil {
			return err
		}
		return keepAttributes(from, content)
	}
	if err := os.Mkdir(content, 0o777); err != nil {
		return err
	}
	return os.Chmod(content, 0o777)
}

// keepAttributes gives a copy the owners and modes of its original, as a copy of a block device would have.
func keepAttributes(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, below)
		if err := copyOwner(info, target); err != nil || info.Mode()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chmod(target, info.Mode()) // after the owner: a change of owner clears setuid
	})
}

// usable reports whether a volume can be used in a topology. A key that one of them lacks excludes nothing.
func (t thing) usable(topology map[string]string) bool {
	return len(t.Accessible) == 0 || slices.ContainsFunc(t.Accessible, func(segments map[string]string) bool {
		for key, value := range segments {
			if have, ok := topology[key]; ok && have != value {
				return false
			}
		}
		return true
	})
}

// remove removes a thing; none is no error.
func (s *store) remove(kind, id string) error {
	if !okID.MatchString(id) {
		return nil
	}
	if err := os.Remove(s.path(kind, id, "about.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.path(kind, id))
}

// all lists things, sorted by id.
func (s *store) all(kind string) ([]thing, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, kind))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []thing
	for _, entry := range entries {
		if t, ok, err := s.get(kind, entry.Name()); err != nil {
			return nil, err
		} else if ok {
			out = append(out, t)
		}
	}
	return out, nil
}

// usage adds up files and their bytes.
func usage(dir string) (files, bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went meanwhile
		}
		files++
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return files, bytes
}
