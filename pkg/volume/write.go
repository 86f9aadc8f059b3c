package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
)

// layout is how the content of a volume lies on disk.
type layout int

const (
	// linked: the files are in a directory with a time for a name, the link ..data leads there, and one link per file or directory leads
	// through ..data. Exchanging ..data changes all files at once. Programs watch for that; the names are upstream's.
	linked layout = iota
	// plain: the files themselves, each replaced by rename. For Windows Server 2016, where containers cannot follow such links.
	plain
)

func layoutFor(platform pod.Platform) layout {
	if platform.OS == "windows" {
		return plain
	}
	return linked
}

const (
	dataLink = "..data"
	newLink  = "..data_tmp"
	tempFile = "..tmp-"
)

// writer brings content to disk. What has not changed is not written.
type writer struct {
	layout layout
	clock  clock.PassiveClock
}

// has says whether dir was ever completely written.
func (w writer) has(dir string) (bool, error) {
	name := dir
	if w.layout == linked {
		name = filepath.Join(dir, dataLink)
	}
	_, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// write makes dir, which exists, hold exactly want. gid, if any, becomes the group of all files.
func (w writer) write(dir string, want payload, gid *int64) error {
	if err := conflicts(want, w.layout == plain); err != nil {
		return err
	}
	if w.layout == plain {
		return writePlain(dir, want)
	}
	return w.writeLinked(dir, want, gid)
}

// conflicts says which two files cannot be in one directory. fold: names that differ in case only are one.
func conflicts(want payload, fold bool) error {
	seen := map[string]string{}
	key := func(s string) string {
		if fold {
			return strings.ToLower(s)
		}
		return s
	}
	for name := range want {
		if other, double := seen[key(name)]; double {
			return fmt.Errorf("paths %q and %q differ only in case, which Windows does not distinguish", name, other)
		}
		seen[key(name)] = name
	}
	for name := range want {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if other, both := seen[key(d)]; both {
				return fmt.Errorf("path %q cannot be a file and the directory of %q", other, name)
			}
		}
	}
	return nil
}

func (w writer) writeLinked(dir string, want payload, gid *int64) error {
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil || filepath.Base(current) != current || !strings.HasPrefix(current, "..") {
		current = ""
	}
	if current == "" || !same(filepath.Join(dir, current), want, gid) {
		if current, err = w.writeTimestamped(dir, want, gid); err != nil {
			return err
		}
	}
	links := map[string]bool{}
	for name := range want {
		top, _, _ := strings.Cut(name, "/")
		links[top] = true
	}
	for top := range links {
		if err := link(dir, top, filepath.Join(dataLink, top)); err != nil {
			return fmt.Errorf("cannot link %s: %w", top, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list volume: %w", err)
	}
	for _, e := range entries {
		if n := e.Name(); n != dataLink && n != current && !links[n] {
			if err := os.RemoveAll(filepath.Join(dir, n)); err != nil {
				return fmt.Errorf("cannot remove old content: %w", err)
			}
		}
	}
	return nil
}

// writeTimestamped writes want into a new directory and leads ..data there. Left half-made, it is removed by the next write.
func (w writer) writeTimestamped(dir string, want payload, gid *int64) (string, error) {
	tree, err := os.MkdirTemp(dir, w.clock.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return "", fmt.Errorf("cannot make directory: %w", nameless(err))
	}
	if err := writeTree(tree, want, gid); err != nil {
		return "", errors.Join(err, os.RemoveAll(tree))
	}
	name := filepath.Base(tree)
	if err := link(dir, dataLink, name); err != nil {
		return "", errors.Join(fmt.Errorf("cannot exchange content: %w", err), os.RemoveAll(tree))
	}
	return name, nil
}

// link makes dir/name a link to target, at once.
func link(dir, name, target string) error {
	p := filepath.Join(dir, name)
	if have, err := os.Readlink(p); err == nil && have == target {
		return nil
	}
	temp := filepath.Join(dir, newLink)
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, p)
}

// nameless is err without the name of a file that is another at each try: events count what repeats only while its words stay the same.
func nameless(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

func writeTree(tree string, want payload, gid *int64) error {
	dirs := map[string]bool{".": true}
	for _, name := range slices.Sorted(maps.Keys(want)) { // in one order, so that a failure repeats
		f, p := want[name], filepath.Join(tree, filepath.FromSlash(name))
		for d := path.Dir(name); !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return fmt.Errorf("cannot make directory of %s: %w", name, nameless(err))
		}
		if err := writeOwned(p, f, gid); err != nil {
			return fmt.Errorf("cannot write %s: %w", name, nameless(err))
		}
	}
	for d := range dirs {
		p, mode := filepath.Join(tree, filepath.FromSlash(d)), fs.FileMode(0o755)
		if gid != nil {
			if err := os.Chown(p, -1, int(*gid)); err != nil {
				return fmt.Errorf("cannot give directory %s to group %d: %w", d, *gid, err)
			}
			mode |= groupDir | groupRead
		}
		if err := os.Chmod(p, mode); err != nil {
			return fmt.Errorf("cannot set mode of directory %s: %w", d, err)
		}
	}
	return nil
}

// writeOwned writes a new file that at no moment can be read by more than it is meant for.
func writeOwned(p string, f file, gid *int64) error {
	if err := os.WriteFile(p, f.data, 0o600); err != nil {
		return err
	}
	uid, group := -1, -1
	if f.uid != nil {
		uid = int(*f.uid)
	}
	if gid != nil {
		group = int(*gid)
	}
	if uid >= 0 || group >= 0 {
		if err := os.Chown(p, uid, group); err != nil {
			return err
		}
	}
	return os.Chmod(p, finalMode(f, gid))
}

func finalMode(f file, gid *int64) fs.FileMode {
	if gid != nil {
		return f.mode | groupRead
	}
	return f.mode
}

// same says whether the tree holds want, in content and modes. Owners do not change in the life of a pod.
func same(tree string, want payload, gid *int64) bool {
	count := 0
	err := filepath.WalkDir(tree, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(tree, p)
		if err != nil {
			return err
		}
		f, ok := want[filepath.ToSlash(rel)]
		fi, err := e.Info()
		if err != nil || !ok || !fi.Mode().IsRegular() || fi.Mode().Perm() != finalMode(f, gid) || !equal(p, f.data) {
			return fs.ErrInvalid
		}
		count++
		return nil
	})
	return err == nil && count == len(want)
}

func equal(p string, data []byte) bool {
	fi, err := os.Lstat(p)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() != int64(len(data)) {
		return false
	}
	have, err := os.ReadFile(p)
	return err == nil && bytes.Equal(have, data)
}

// writePlain writes the files themselves. Windows has no modes but "read-only", which would only hinder the next change.
func writePlain(dir string, want payload) error {
	keep := map[string]bool{dir: true}
	for name := range want {
		p := filepath.Join(dir, filepath.FromSlash(name))
		for ; !keep[p]; p = filepath.Dir(p) {
			keep[p] = true
		}
	}
	// First what goes, since a file may become a directory.
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		_, isFile := want[filepath.ToSlash(rel)]
		if keep[p] && (p == dir || e.IsDir() != isFile) {
			return nil
		}
		if err := os.RemoveAll(p); err != nil {
			return err
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot remove old content: %w", err)
	}
	var errs []error
	for name, f := range want {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if equal(p, f.data) {
			continue
		}
		if err := replace(p, f.data); err != nil {
			errs = append(errs, fmt.Errorf("cannot write %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func replace(p string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(p), tempFile)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		if err = os.Chmod(f.Name(), 0o644); err == nil {
			err = os.Rename(f.Name(), p)
		}
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
