// Package atomic writes the content of volumes to disk so that containers see all files of one version or all of another.
package atomic

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
	"syscall"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// layout is how the content of a volume lies on disk.
type layout int

const (
	// linked: the files are in a directory with a time for a name, the link ..data leads there, and one link per file or directory leads
	// through ..data. Exchanging ..data changes all files in one step. Programs watch for that; the names are upstream's.
	linked layout = iota
	// plain: the files themselves, each replaced by rename. For Windows: containers of Server 2016 cannot follow such links.
	plain
)

// File is the content of one file of a volume.
type File struct {
	Data []byte
	Mode fs.FileMode // permission bits
	UID  *int64      // owner; nil: the agent's user
}

// Content is everything that a volume holds: files by their path in it, with forward slashes.
type Content map[string]File

// CheckPath says why a file of a volume cannot have the path p; nil when it can. Names that begin with ".." are the Writer's own.
func CheckPath(platform pod.Platform, p string) error {
	err := paths.CheckRelative(platform, p)
	if err == nil && len(p) > 1 && p[:2] == ".." {
		err = fmt.Errorf("%q must not start with \"..\"", p)
	}
	if err != nil {
		return fmt.Errorf("invalid path in items: %w", err)
	}
	return nil
}

const (
	dataLink = "..data"
	newLink  = "..data_tmp"
	tempFile = "..tmp-"
)

// Writer writes content to disk. It does not write what has not changed. Concurrent calls must be for different directories.
type Writer struct {
	layout layout
	clock  clock.PassiveClock
	rename func(from, to string) error
}

// NewWriter makes the Writer for pods on platform. clock names the versions.
func NewWriter(platform pod.Platform, clock clock.PassiveClock) Writer {
	if platform.OS == "windows" {
		return Writer{plain, clock, os.Rename}
	}
	return Writer{linked, clock, os.Rename}
}

// Has says whether dir was ever completely written.
func (w Writer) Has(dir string) (bool, error) {
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

// Write makes dir, which exists, hold exactly want. gid, if any, becomes the group of all files. An error can leave the former content with
// parts of the new one, which the next call removes; on Linux containers then see the former content alone.
func (w Writer) Write(dir string, want Content, gid *int64) error {
	if err := conflicts(want, w.layout == plain); err != nil {
		return err
	}
	if w.layout == plain {
		return w.writePlain(dir, want)
	}
	return w.writeLinked(dir, want, gid)
}

// conflicts says which two files cannot be in one directory. fold: names that differ in case only are one.
func conflicts(want Content, fold bool) error {
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

func (w Writer) writeLinked(dir string, want Content, gid *int64) error {
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
func (w Writer) writeTimestamped(dir string, want Content, gid *int64) (string, error) {
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

// link makes dir/name a link to target in one step.
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

// nameless is err without the name of a file that differs at each try: Events are counted as repeated only while their text stays the same.
func nameless(err error) error {
	var at *fs.PathError
	var between *os.LinkError
	switch {
	case errors.As(err, &at):
		return at.Err
	case errors.As(err, &between):
		return between.Err
	}
	return err
}

// ErrHeld says that Windows does not let a file be replaced or removed, and what to do about it.
var ErrHeld = errors.New("the file keeps its former content while a container has it open without FILE_SHARE_DELETE; it is tried again until the container closes it")

// holding are the errors by which Windows says that: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_USER_MAPPED_FILE.
var holding = []syscall.Errno{5, 32, 1224}

// held is err of a change of a file, with ErrHeld where that is why, and without names of files.
func held(err error) error {
	var code syscall.Errno
	if errors.As(err, &code) && slices.Contains(holding, code) {
		return fmt.Errorf("%w (%w)", ErrHeld, code)
	}
	return nameless(err)
}

func writeTree(tree string, want Content, gid *int64) error {
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
			mode |= access.GroupDir | access.GroupRead
		}
		if err := os.Chmod(p, mode); err != nil {
			return fmt.Errorf("cannot set mode of directory %s: %w", d, err)
		}
	}
	return nil
}

// writeOwned writes a new file that at no moment can be read by more than it is meant for.
func writeOwned(p string, f File, gid *int64) error {
	if err := os.WriteFile(p, f.Data, 0o600); err != nil {
		return err
	}
	uid, group := -1, -1
	if f.UID != nil {
		uid = int(*f.UID)
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

func finalMode(f File, gid *int64) fs.FileMode {
	if gid != nil {
		return f.Mode | access.GroupRead
	}
	return f.Mode
}

// same says whether the tree holds want, in content and modes. Owners do not change in the life of a pod.
func same(tree string, want Content, gid *int64) bool {
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
		if err != nil || !ok || !fi.Mode().IsRegular() || fi.Mode().Perm() != finalMode(f, gid) || !equal(p, f.Data) {
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

// writePlain writes the files themselves. Windows has no modes but "read-only", which would only hinder the next change. A file that cannot be changed
// holds up no other.
func (w Writer) writePlain(dir string, want Content) error {
	keep := map[string]bool{dir: true}
	for name := range want {
		p := filepath.Join(dir, filepath.FromSlash(name))
		for ; !keep[p]; p = filepath.Dir(p) {
			keep[p] = true
		}
	}
	var errs []error
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
			errs = append(errs, fmt.Errorf("cannot remove %s: %w", filepath.ToSlash(rel), held(err)))
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot list old content: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) { // in one order, so that a failure repeats
		f, p := want[name], filepath.Join(dir, filepath.FromSlash(name))
		if equal(p, f.Data) {
			continue
		}
		if err := w.replace(p, f.Data); err != nil {
			errs = append(errs, fmt.Errorf("cannot write %s: %w", name, held(err)))
		}
	}
	return errors.Join(errs...)
}

func (w Writer) replace(p string, data []byte) error {
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
			err = w.rename(f.Name(), p)
		}
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
