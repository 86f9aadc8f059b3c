package kinds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// Images is what image volumes are made from.
type Images interface {
	// Ensure makes the image of v present, as its pull policy says, and reports progress to the pod by Events.
	Ensure(ctx context.Context, p *v1.Pod, v *v1.Volume) (pod.Image, error)
	// Export returns the file system of the image with that id as a tar archive.
	Export(ctx context.Context, id string) (io.ReadCloser, error)
}

// Below Root/images/<id> lie the image's files, a mark once they are complete, and one empty file per pod that uses them: which pods are left
// is read from disk, also after a crash.
const (
	imagesName = "images"
	filesName  = "files"
	readyName  = "ready"
	usersName  = "pods"
)

// images is the file system of an image, laid out once for all pods (API: volumes[].image). Linux only.
type images struct {
	source   Images
	platform pod.Platform
	dir      string

	mu    sync.Mutex
	locks map[string]*sync.Mutex // by directory; few images, never removed
}

func newImages(host volume.Host, source Images) *images {
	return &images{source: source, platform: host.Platform, dir: filepath.Join(host.Root, imagesName), locks: map[string]*sync.Mutex{}}
}

func (*images) Name() string { return "kubernetes.io/image" }

func (*images) Has(v volume.Volume) bool { return v.Spec.Image != nil }

// Prepare does nothing: only a container's start can wait for an image.
func (*images) Prepare(context.Context, volume.Volume) (string, error) { return "", nil }

// Mount returns the directory with the files of v's image, which the pod uses from now on.
func (i *images) Mount(ctx context.Context, v volume.Volume) (volume.Mount, error) {
	path, err := i.open(ctx, v)
	return volume.Mount{Path: path, ReadOnly: true, Sealed: true}, err
}

// Usage counts nothing: an image is many pods'.
func (*images) Usage(volume.Volume) (disk.Place, bool, error) { return disk.Place{}, false, nil }

// Clean forgets that the pod uses images and removes those that no pod uses any more.
func (i *images) Clean(_ context.Context, left volume.Remains) error { return i.release(left.UID) }

func (i *images) lock(dir string) *sync.Mutex {
	i.mu.Lock()
	l := i.locks[dir]
	if l == nil {
		l = &sync.Mutex{}
		i.locks[dir] = l
	}
	i.mu.Unlock()
	l.Lock()
	return l
}

func (i *images) open(ctx context.Context, v volume.Volume) (string, error) {
	img, err := i.source.Ensure(ctx, v.Pod, v.Spec)
	if err != nil {
		return "", err
	}
	user := string(v.Pod.UID)
	name := strings.TrimPrefix(img.ID, "sha256:")
	if err := errors.Join(paths.CheckElement(i.platform, name), paths.CheckElement(i.platform, user)); err != nil {
		return "", fmt.Errorf("cannot lay out image %q: %w", img.ID, err)
	}
	dir := filepath.Join(i.dir, name)
	defer i.lock(dir).Unlock()
	if err := os.MkdirAll(filepath.Join(dir, usersName), paths.DirMode); err != nil {
		return "", fmt.Errorf("cannot lay out image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, usersName, user), nil, 0o640); err != nil {
		return "", fmt.Errorf("cannot note the user of an image: %w", err)
	}
	files := filepath.Join(dir, filesName)
	if paths.Exists(filepath.Join(dir, readyName)) {
		return files, nil
	}
	if err := i.layOut(ctx, img, files); err != nil {
		return "", fmt.Errorf("cannot lay out image %q: %w", v.Spec.Image.Reference, err)
	}
	return files, os.WriteFile(filepath.Join(dir, readyName), nil, 0o640)
}

func (i *images) layOut(ctx context.Context, img pod.Image, files string) error {
	if err := os.RemoveAll(files); err != nil { // a layout that was cut short
		return err
	}
	if err := paths.MakeDir(files, 0o755); err != nil {
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
	// The mark goes first and the user last, so that an interrupted copy neither counts as complete nor is forgotten.
	if err := os.Remove(filepath.Join(dir, readyName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, filesName)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
