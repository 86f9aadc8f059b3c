package csidriver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A block volume is a file, which losetup(8) makes a block device while the volume is staged. Nodes of one machine have a device each.

// imageName is the file of a block volume in its content.
const imageName = "image"

func (s *store) image(kind, id string) string {
	return filepath.Join(s.content(kind, id), imageName)
}

// record is where a node notes its device of a block volume.
func (n node) record(id string) string { return n.d.store.path(volumes, id, "device-"+n.d.cfg.NodeID) }

// device returns this node's block device of a volume; "": there is none.
func (n node) device(id string) (string, error) {
	note, err := os.ReadFile(n.record(id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	// Since a boot the name may be another file's.
	all, err := losetup("--list", "--noheadings", "--output", "NAME", "--associated", n.d.store.image(volumes, id))
	for line := range strings.Lines(all) {
		if strings.TrimSpace(line) == string(note) {
			return string(note), err
		}
	}
	return "", err
}

// attach makes the block device of a volume, unless this node has one.
func (n node) attach(id string) error {
	device, err := n.device(id)
	if err != nil || device != "" {
		return err
	}
	if device, err = losetup("--find", "--show", n.d.store.image(volumes, id)); err != nil {
		return err
	}
	return os.WriteFile(n.record(id), []byte(strings.TrimSpace(device)), 0o640)
}

// detach removes what attach made; none is no error.
func (n node) detach(id string) error {
	device, err := n.device(id)
	if err != nil {
		return err
	}
	if device != "" {
		if _, err := losetup("--detach", device); err != nil {
			return err
		}
	}
	if err := os.Remove(n.record(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func losetup(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	run := exec.CommandContext(ctx, "losetup", args...)
	var stderr bytes.Buffer
	run.Stderr = &stderr
	out, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

// fillImage makes the file of a block volume of that size, with the content of from if that is not "".
func fillImage(image, from string, size int64) error {
	if err := os.MkdirAll(filepath.Dir(image), 0o750); err != nil {
		return err
	}
	to, err := os.OpenFile(image, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	if from != "" {
		err = copySparse(to, from)
	}
	return errors.Join(err, to.Truncate(size), to.Close())
}

// copySparse copies a file and leaves holes where it has zeros.
func copySparse(to *os.File, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	part, zeros := make([]byte, 1<<16), make([]byte, 1<<16)
	for at := int64(0); ; {
		count, err := io.ReadFull(source, part)
		if count > 0 && !bytes.Equal(part[:count], zeros[:count]) {
			if _, err := to.WriteAt(part[:count], at); err != nil {
				return err
			}
		}
		at += int64(count)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}
