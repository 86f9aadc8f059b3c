package san

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// System is the storage side of a Linux host: its kernel's directories, and what is done there. All fields must be set.
type System struct {
	Sys, Dev, Run string
	// Databases are the directories that may have open-iscsi's records. Debian 12 has them in /etc/iscsi; Debian 13 has only settings there.
	Databases []string
	// Write writes into a file of sysfs.
	Write func(path, data string) error
	// Claimed says whether a file system, a mapping or the like has a block device for itself.
	Claimed func(device string) (bool, error)
	// Events returns a channel that receives after the kernel has found or lost devices, and what ends that.
	Events func() (changed <-chan struct{}, stop func(), err error)
}

const (
	deviceWait = 30 * time.Second // for a disk after a scan, as upstream
	// mapWait is how long multipathd may take to join the ways. Upstream waits for 10 s, but multipathd sees a disk only after udev, which has taken 22 s on a
	// busy host; a disk that is mounted by one way keeps multipathd from it.
	mapWait = 30 * time.Second
)

// list returns the sorted entries of a directory of sysfs, none if it does not exist.
func (s *System) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(join(s.Sys, dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the kernel's devices: %w", err)
	}
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.Name()
	}
	return out, nil
}

// text returns a value of sysfs; "": there is none.
func (s *System) text(dir, name string) string {
	b, err := os.ReadFile(join(s.Sys, dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// real returns where a link of sysfs leads.
func (s *System) real(name string) (string, error) {
	to, err := filepath.EvalSymlinks(join(s.Sys, name))
	if err != nil {
		return "", fmt.Errorf("cannot read the kernel's devices: %w", err)
	}
	return to, nil
}

// device returns the block device at one of the places of the bus, and its identity; "": there is none.
func (s *System) device(ids []address, lun int) (name, wwid string) {
	for _, id := range ids {
		dir := filepath.Join("class/scsi_device", id.host+":"+id.channel+":"+id.target+":"+strconv.Itoa(lun), "device")
		if blocks, err := s.list(filepath.Join(dir, "block")); err == nil && len(blocks) > 0 && s.node(blocks[0]) {
			return blocks[0], s.text(dir, "wwid")
		}
	}
	return "", ""
}

// node reports whether a device has its file in /dev.
func (s *System) node(name string) bool {
	_, err := os.Lstat(join(s.Dev, name))
	return err == nil
}

// byID returns the disk to which udev has given that identity; "": there is none.
func (s *System) byID(wwid string) string {
	to, err := filepath.EvalSymlinks(join(s.Dev, "disk/by-id", "scsi-"+wwid))
	if err != nil {
		return ""
	}
	name := filepath.Base(to)
	if below, err := s.list(filepath.Join("block", name, "slaves")); err == nil && strings.HasPrefix(name, "dm-") && len(below) > 0 {
		return below[0] // the name is that of the mapping above the disk
	}
	return name
}

// scan has the kernel look for a disk on one way, and for no other disk.
func (s *System) scan(p path, lun int) error {
	for _, id := range p.ids {
		number := strconv.Itoa(lun)
		if id.target == "-" {
			number = "-"
		}
		if err := s.Write(join(s.Sys, "class/scsi_host/host"+id.host, "scan"), id.channel+" "+id.target+" "+number); err != nil {
			return fmt.Errorf("cannot scan SCSI host %s: %w", id.host, err)
		}
	}
	return nil
}

// mapped returns the device of multipathd above the disks, such as "dm-0"; "": there is none.
func (s *System) mapped(paths []path) string {
	for _, p := range paths {
		if p.device == "" {
			continue
		}
		holders, err := s.list(filepath.Join("block", p.device, "holders"))
		if err != nil {
			continue
		}
		for _, h := range holders {
			// It has a size when multipathd has switched it on.
			if size := s.text(filepath.Join("block", h), "size"); size != "" && size != "0" && s.node(h) && strings.HasPrefix(s.text(filepath.Join("block", h, "dm"), "uuid"), "mpath-") {
				return h
			}
		}
	}
	return ""
}

// mapper reports whether multipathd runs.
func (s *System) mapper() bool {
	_, err := os.Stat(join(s.Run, "multipathd.pid"))
	return err == nil
}

// remove has the kernel forget a disk.
func (s *System) remove(device string) error {
	err := s.Write(join(s.Sys, "block", device, "device/delete"), "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove /dev/%s: %w", device, err)
	}
	return nil
}

// blankSize is how much of a disk's beginning and end must be zero before it counts as empty, in bytes. Signatures of file systems, of RAID and of
// partitions lie there.
const blankSize = 1 << 20

// blank reports whether a disk can be read and has nothing but zeros at its beginning and end.
func (s *System) blank(device string) (bool, error) {
	f, err := os.Open(join(s.Dev, device))
	if err != nil {
		return false, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	if size == 0 {
		return false, fmt.Errorf("/dev/%s has no size", device)
	}
	block := make([]byte, min(size, blankSize))
	for _, at := range []int64{0, max(0, size-blankSize)} {
		if _, err := f.ReadAt(block, at); err != nil {
			return false, err
		}
		if slices.ContainsFunc(block, func(b byte) bool { return b != 0 }) {
			return false, nil
		}
	}
	return true, nil
}
