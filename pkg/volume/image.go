package volume

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// Below Root/images/<id> lie the image's files, a mark once they are complete, and one empty file per pod that uses them: who is left is
// read from disk also after a crash.
const (
	imagesName = "images"
	filesName  = "files"
	readyName  = "ready"
	usersName  = "pods"
)

// images lays file systems of images out, once each for all pods (API: volumes[].image).
type images struct {
	source Images
	dir    string

	mu    sync.Mutex
	locks map[string]*sync.Mutex // by directory; few images, never removed
}

func (i *images) lock(dir string) *sync.Mutex {
	i.mu.Lock()
	if i.locks == nil {
		i.locks = map[string]*sync.Mutex{}
	}
	l := i.locks[dir]
	if l == nil {
		l = &sync.Mutex{}
		i.locks[dir] = l
	}
	i.mu.Unlock()
	l.Lock()
	return l
}

// prepareImage returns the directory with the files of v's image, which p uses from now on.
func (m *Manager) prepareImage(ctx context.Context, p *v1.Pod, v *v1.Volume) (string, error) {
	img, err := m.images.source.Ensure(ctx, p, v)
	if err != nil {
		return "", err
	}
	name := strings.TrimPrefix(img.ID, "sha256:")
	if err := errors.Join(checkElement(m.cfg.Platform, name), checkElement(m.cfg.Platform, string(p.UID))); err != nil {
		return "", fmt.Errorf("cannot lay out image %q: %w", img.ID, err)
	}
	dir := filepath.Join(m.images.dir, name)
	defer m.images.lock(dir).Unlock()
	if err := os.MkdirAll(filepath.Join(dir, usersName), dirMode); err != nil {
		return "", fmt.Errorf("cannot lay out image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, usersName, string(p.UID)), nil, 0o640); err != nil {
		return "", fmt.Errorf("cannot note the user of an image: %w", err)
	}
	files := filepath.Join(dir, filesName)
	if exists(filepath.Join(dir, readyName)) {
		return files, nil
	}
	if err := m.images.layOut(ctx, img, files); err != nil {
		return "", fmt.Errorf("cannot lay out image %q: %w", v.Image.Reference, err)
	}
	return files, os.WriteFile(filepath.Join(dir, readyName), nil, 0o640)
}

func (i *images) layOut(ctx context.Context, img pod.Image, files string) error {
	if err := os.RemoveAll(files); err != nil { // a layout that was cut short
		return err
	}
	if err := makeDir(files, 0o755); err != nil {
		return err
	}
	archive, err := i.source.Export(ctx, img.ID)
	if err != nil {
		return err
	}
	defer archive.Close()
	root, err := os.OpenRoot(files)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := unpack(ctx, root, archive); err != nil {
		return errors.Join(err, os.RemoveAll(files)) // a full disk has no room for half an image
	}
	return nil
}

// release forgets that pod uid uses images and removes those that nobody uses any more.
func (i *images) release(uid types.UID) error {
	users, err := filepath.Glob(filepath.Join(i.dir, "*", usersName, string(uid)))
	if err != nil {
		return err
	}
	var errs []error
	for _, user := range users {
		errs = append(errs, i.leave(filepath.Dir(filepath.Dir(user)), user))
	}
	return errors.Join(errs...)
}

func (i *images) leave(dir, user string) error {
	defer i.lock(dir).Unlock()
	others, err := os.ReadDir(filepath.Dir(user))
	if err != nil {
		return err
	}
	if len(others) > 1 {
		return os.Remove(user)
	}
	// The mark goes first and the user last, so that what is cut short is neither taken for complete nor forgotten.
	if err := os.Remove(filepath.Join(dir, readyName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, filesName)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// inImage says why sub is nothing that can be mounted from an image: an image has all that it will ever have.
func inImage(dir, sub string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = root.Stat(sub)
	return err
}

// enginesOwn are files that an engine puts into every container and that are not the image's, when they are empty.
var enginesOwn = map[string]bool{
	".dockerenv": true, "dev/console": true, "etc/hosts": true, "etc/hostname": true, "etc/resolv.conf": true,
}

// unpack writes an archive into root, and nothing outside of it whatever names and links the archive has. Device files are left out: an
// image volume shall not be a way to devices. Modification times and owners are kept, extended attributes are not.
func unpack(ctx context.Context, root *os.Root, archive io.Reader) error {
	type late struct {
		name   string
		header *tar.Header
	}
	var dirs []late // their modes and times come last, since writing into them needs one and changes the other
	reader := tar.NewReader(archive)
	for {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("cannot read the image's files: %w", err)
		}
		name := path.Clean(strings.TrimLeft(h.Name, "/"))
		if name == ".." || strings.HasPrefix(name, "../") {
			return fmt.Errorf("the image has a file %q, which leads out of it", h.Name)
		}
		if enginesOwn[name] && h.Size == 0 || name == "etc/mtab" && h.Linkname == "/proc/mounts" {
			continue
		}
		if err := unpackOne(root, name, h, reader); err != nil {
			return fmt.Errorf("cannot unpack %q: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, late{name, h})
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := dress(root, dirs[i].name, dirs[i].header); err != nil {
			return fmt.Errorf("cannot unpack %q: %w", dirs[i].name, err)
		}
	}
	return nil
}

func unpackOne(root *os.Root, name string, h *tar.Header, data io.Reader) error {
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, data)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		return dress(root, name, h)
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return root.Lchown(name, h.Uid, h.Gid)
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimLeft(h.Linkname, "/")), name)
	}
	return nil
}

// dress gives a file its owner, mode and time, in the order in which each keeps the others.
func dress(root *os.Root, name string, h *tar.Header) error {
	if err := root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := root.Chmod(name, h.FileInfo().Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)); err != nil {
		return err
	}
	return root.Chtimes(name, h.ModTime, h.ModTime)
}
