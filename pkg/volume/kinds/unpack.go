package kinds

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

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
			return fmt.Errorf("the image has a file %q with a path outside of the image", h.Name)
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
