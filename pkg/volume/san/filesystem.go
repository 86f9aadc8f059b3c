package san

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// probe finds out what is on a disk. It is empty only if blkid finds nothing and it can be read and has nothing but zeros where file systems begin
// and end: blkid(8) finds nothing on a disk that it cannot read, either.
func (w *work) probe(ctx context.Context, device string) error {
	out, err := w.kind.parts.Run.Run(ctx, nil, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", w.dev(device))
	found, err := content(device, out, err)
	if err != nil || found != unknown {
		w.seen.content = found
		return err
	}
	blank, err := w.kind.parts.System.blank(device)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the disk: %w", err)
	case !blank && !w.seen.begun:
		return fmt.Errorf("/dev/%s has data that blkid does not know, and is not formatted: want a file system on it, or zeros in its first and last MiB (blkdiscard, or dd if=/dev/zero) if the data is of no use", device)
	}
	w.seen.content = empty
	return nil
}

// content reads the answer of blkid; unknown: it found nothing. It is pure.
func content(device string, out []byte, ran error) (string, error) {
	switch {
	case ran != nil && code(ran) == 2: // nothing found
		return unknown, nil
	case ran != nil && code(ran) == 8:
		return unknown, fmt.Errorf("/dev/%s has signatures of several file systems: want one, see wipefs /dev/%s", device, device)
	case ran != nil:
		return unknown, ran
	}
	partitions := ""
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case name == "TYPE" && value != "":
			return value, nil
		case name == "PTTYPE":
			partitions = value
		}
	}
	if partitions != "" {
		return unknown, fmt.Errorf("/dev/%s has a partition table (%s): want a file system on the whole disk", device, partitions)
	}
	return unknown, nil
}

func (w *work) dev(device string) string { return join(w.kind.parts.System.Dev, device) }

// format makes a file system on an empty disk.
func (w *work) format(ctx context.Context, device string) error {
	klog.InfoS("Making a file system on an empty disk", "disk", w.record.Unique, "device", device, "fsType", w.record.FSType)
	// An agent that is killed meanwhile leaves a disk that is neither empty nor has a file system.
	w.record.Begun = true
	if err := w.kind.save(w.record, nil); err != nil {
		return err
	}
	var args []string
	switch w.record.FSType {
	case "ext3", "ext4": // as upstream: no question, and no blocks for root alone
		args = []string{"-F", "-m0"}
	case "xfs", "btrfs":
		args = []string{"-f"}
	}
	_, err := w.kind.parts.Run.Run(ctx, nil, "mkfs."+w.record.FSType, append(args, w.dev(device))...)
	if errors.Is(err, command.ErrNotFound) {
		w.record.Begun = false
		return errors.Join(fmt.Errorf("%w; want it on this node: install e2fsprogs (ext4), xfsprogs (xfs) or the like", err), w.kind.save(w.record, nil))
	}
	if err != nil {
		return err
	}
	w.seen.content = w.record.FSType
	return nil
}

// Exit codes of fsck(8).
const (
	fsckCorrected   = 1
	fsckUncorrected = 4
)

// check repairs a file system as far as that is safe.
func (w *work) check(ctx context.Context, device string) error {
	_, err := w.kind.parts.Run.Run(ctx, nil, "fsck", "-a", w.dev(device))
	switch {
	case err == nil:
	case code(err) == fsckCorrected:
		klog.InfoS("fsck has corrected errors", "disk", w.record.Unique, "device", device)
	case code(err) > 0 && code(err)&fsckUncorrected != 0:
		return fmt.Errorf("'fsck' found errors on device %s but could not correct them: %w", w.dev(device), err)
	default: // as upstream: mount(8) has the last word
		klog.InfoS("Cannot check a file system; mounting it all the same", "disk", w.record.Unique, "device", device, "err", err)
	}
	return nil
}

// mount mounts the disk for the node.
func (w *work) mount(ctx context.Context, device string) error {
	dir := w.kind.tree.node(w.record)
	if err := paths.MakeDir(dir, paths.DirMode); err != nil {
		return fmt.Errorf("cannot make the directory of the disk: %w", err)
	}
	if err := w.kind.protocol.save(w.record, dir); err != nil {
		return fmt.Errorf("cannot write upstream's record of the disk: %w", err)
	}
	if w.record.Begun {
		w.record.Begun = false
		if err := w.kind.save(w.record, nil); err != nil {
			return err
		}
	}
	args := []string{"-t", w.record.FSType}
	options := w.record.Options
	if w.record.ReadOnly {
		options = append(slices.Clip(options), "ro")
	}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	_, err := w.kind.parts.Run.Run(ctx, nil, "mount", append(args, "--", w.dev(device), dir)...)
	return err
}
