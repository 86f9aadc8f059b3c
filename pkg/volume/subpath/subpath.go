// Package subpath shows containers a part of a volume, and never anything outside of it, whatever links containers put there meanwhile.
package subpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// dirName is the directory below pods/<uid> with the mount points of subPaths: <volume>/<container>/<index of the volumeMount>.
const dirName = "volume-subpaths"

// Dir is the directory with the mount points and copied files of the pod whose directory is podDir. It may be missing.
func Dir(podDir string) string { return filepath.Join(podDir, dirName) }

// Target is one volumeMount of a container: it names the place where the engine finds what a subPath chose.
type Target struct {
	PodDir    string
	Volume    string
	Container string
	Index     int // of the volumeMount in the container
}

func (t Target) path(platform pod.Platform) (string, error) {
	if err := errors.Join(paths.CheckElement(platform, t.Container), paths.CheckElement(platform, t.Volume)); err != nil {
		return "", err
	}
	return filepath.Join(Dir(t.PodDir), t.Volume, t.Container, strconv.Itoa(t.Index)), nil
}

// Maker makes mounts of parts of volumes. Calls for one pod must come one after the other.
type Maker struct {
	Platform pod.Platform
	Mounts   mount.Mounter
	Access   access.Control
}

// Apply changes m, which is a mount of a whole volume, into one of sub in it; "" is the whole volume. A missing directory is made. On Windows
// it also checks pipes, and gives the container a copy of a file, because engines there cannot mount single files.
func (k *Maker) Apply(m *pod.Mount, sub string, to Target) error {
	switch {
	case k.Platform.OS == "windows" && podspec.IsPipe(m.HostPath):
		return k.checkPipe(*m, sub)
	case sub != "":
		return k.choose(m, sub, to)
	case k.Platform.OS == "windows":
		return k.wholeFile(m, to)
	}
	return nil
}

// Check says why sub is not in the volume at dir; nil when it is, or when sub is no relative path, which Apply refuses. It is for volumes in which
// nothing may be made.
func (k *Maker) Check(dir, sub string) error {
	at, err := clean(k.Platform, sub)
	if err != nil {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		_, err = root.Stat(at)
	}
	if err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	return nil
}

// choose makes m a mount of sub. sub may go through links that stay within the volume; what leads out of it is refused, also when a
// container exchanges links meanwhile. On Linux the file that was found is held open and bound to a mount point of ours. On Windows a
// directory is checked and its path taken: nothing is kept open, since an open handle would hinder the pod in its own volume, so a later
// exchange is not seen; only directories that containers cannot exchange while they run (junctions need privileges that they lack) are there.
func (k *Maker) choose(m *pod.Mount, sub string, to Target) error {
	at, err := clean(k.Platform, sub)
	if err != nil {
		return err
	}
	if at == "." {
		return nil
	}
	root, err := os.OpenRoot(m.HostPath)
	if err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	defer root.Close()
	if err := makeInside(root, at); err != nil {
		return fmt.Errorf("failed to create subPath directory %q: %w", sub, err)
	}
	open := openInside
	if k.Platform.OS == "windows" {
		open = (*os.Root).Open
	}
	f, err := open(root, at)
	if err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	defer f.Close()
	if k.Platform.OS == "windows" {
		m.HostPath = filepath.Join(m.HostPath, filepath.FromSlash(at))
		return k.copyFile(m, f, to)
	}
	target, err := to.path(k.Platform)
	if err != nil {
		return err
	}
	if err := k.bind(f, target); err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	m.HostPath = target
	return nil
}

// bind makes target show f, and keeps a mount that already does.
func (k *Maker) bind(f *os.File, target string) error {
	want, err := f.Stat()
	if err != nil {
		return err
	}
	mounted, err := k.Mounts.IsMount(target)
	if err != nil {
		return err
	}
	if mounted {
		if have, err := os.Stat(target); err == nil && os.SameFile(have, want) {
			return nil
		}
		if err := k.Mounts.Unmount(target); err != nil {
			return err
		}
	}
	// A file is mounted on a file, a directory on a directory; the last container may have had the other.
	if fi, err := os.Lstat(target); err == nil && fi.IsDir() != want.IsDir() {
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), paths.DirMode); err != nil {
		return err
	}
	if want.IsDir() {
		err = paths.MakeDir(target, paths.DirMode)
	} else {
		var t *os.File
		if t, err = os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o640); err == nil {
			err = t.Close()
		}
	}
	if err != nil {
		return err
	}
	return k.Mounts.Bind(f, target)
}

// makeInside makes the missing directories of sub, each with the mode (the sticky bit too) and, by setgid, the group of the volume's root.
func makeInside(root *os.Root, sub string) error {
	if _, err := root.Stat(sub); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fi, err := root.Stat(".")
	if err != nil {
		return err
	}
	at := ""
	for _, e := range strings.Split(sub, "/") {
		at = path.Join(at, e)
		switch err := root.Mkdir(at, fi.Mode().Perm()); {
		case err == nil:
			if err := root.Chmod(at, fi.Mode().Perm()|fi.Mode()&(fs.ModeSetgid|fs.ModeSticky)); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return nil
}

const maxLinks = 40

// openInside opens sub in root without doing anything to it. os.Root keeps every step within root; the last one is opened as it is, so
// that a link there is followed here, by another such walk.
func openInside(root *os.Root, sub string) (*os.File, error) {
	for range maxLinks {
		f, err := root.OpenFile(sub, mount.OpenPath, 0)
		if err != nil {
			return nil, err
		}
		fi, err := f.Stat()
		if err != nil || fi.Mode()&fs.ModeSymlink == 0 {
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		}
		f.Close()
		target, err := root.Readlink(sub)
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(target) {
			return nil, fmt.Errorf("%s is a link to the absolute path %s, which could leave the volume", sub, target)
		}
		// Not path.Join: what stands before ".." may itself be a link.
		sub = path.Dir(sub) + "/" + filepath.ToSlash(target)
	}
	return nil, fmt.Errorf("%s leads through more than %d links", sub, maxLinks)
}

// Expand replaces $(NAME) by the variable's value and $$ by $ (API: volumeMounts[].subPathExpr).
func Expand(s string, env []pod.Env) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			name, _, closed := strings.Cut(s[i+2:], ")")
			if !closed {
				b.WriteByte('$')
				continue
			}
			value, ok := lookup(env, name)
			if !ok {
				return "", fmt.Errorf("missing value for %q", name)
			}
			b.WriteString(value)
			i += 2 + len(name)
		default:
			b.WriteByte('$')
		}
	}
	return b.String(), nil
}

func lookup(env []pod.Env, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if env[i].Name == name {
			return env[i].Value, true
		}
	}
	return "", false
}

// clean returns a volumeMounts[].subPath with forward slashes and without empty and "." elements; "." is the volume itself.
// Upstream's words for what is refused.
func clean(platform pod.Platform, sub string) (string, error) {
	p := sub
	if platform.OS == "windows" {
		p = strings.ReplaceAll(p, `\`, "/")
	}
	if path.IsAbs(p) || platform.OS == "windows" && len(p) > 1 && p[1] == ':' {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	var elements []string
	for _, e := range strings.Split(p, "/") {
		switch e {
		case "", ".":
			continue
		case "..":
			return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
		}
		if err := paths.CheckElement(platform, e); err != nil {
			return "", fmt.Errorf("unable to provision SubPath `%s`: %w", sub, err)
		}
		elements = append(elements, e)
	}
	if len(elements) == 0 {
		return ".", nil
	}
	return strings.Join(elements, "/"), nil
}

// Remove removes the mount points of the pod whose directory is podDir, after everything was unmounted. It removes them one by one: a
// directory that is not empty may hold data, and is an error. Nothing there is no error.
func Remove(podDir string) error { return removeMountPoints(Dir(podDir), 3) }

// removeMountPoints removes dir and the directories in it down to depth, and files there; each must be empty by then.
func removeMountPoints(dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if depth > 1 && e.IsDir() {
			err = removeMountPoints(p, depth-1)
		} else {
			err = os.Remove(p)
		}
		if err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
