package san

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// verb is one thing to do for a disk. Each can be repeated.
type verb string

const (
	done         verb = "done"
	writeRecord  verb = "record"       // note on disk that this node has the disk
	connect      verb = "connect"      // log in to a portal
	scan         verb = "scan"         // have the kernel look for the disk on one way
	awaitDevice  verb = "await device" // wait until the kernel has found it
	awaitMap     verb = "await map"    // wait until multipathd has joined the ways
	probe        verb = "probe"        // find out what is on the disk
	format       verb = "format"       // make a file system
	check        verb = "check"        // fsck
	mountNode    verb = "mount"        // mount the disk for the node
	bindPod      verb = "bind"         // give that to the pod
	linkPod      verb = "link"         // give the device to the pod
	giveGroup    verb = "fsGroup"      // give the files to the pod's fsGroup
	mark         verb = "mark"         // note on disk that the volume is ready for the pod
	unmountNode  verb = "unmount"      // from the node
	flushMap     verb = "flush map"    // have multipathd give up the device
	deleteDevice verb = "delete device"
	disconnect   verb = "disconnect" // log out of a portal
	forgetWays   verb = "forget ways"
	forgetRecord verb = "forget record"
)

// step is a verb and what it is for: a way, a device, or nothing.
type step struct {
	do verb
	on string
}

func (s step) String() string { return strings.TrimSpace(string(s.do) + " " + s.on) }

// path is a way to a disk: a portal, or a port of the fabric.
type path struct {
	name string
	// up says that the way can be used; down why it cannot, although it exists. Neither: it does not exist.
	up     bool
	down   string
	ids    []address // where on the SCSI bus the disk is
	device string    // "sdb"; "": the kernel has not found it
	wwid   string    // of the device; "": unknown
	// session is iscsiadm's number of the session; "": none, or another protocol.
	session string
}

// address is a place on a SCSI bus.
type address struct{ host, channel, target string }

// contents of a disk.
const (
	unknown = ""
	empty   = "empty"
)

// seen is what is known of a disk on this node.
type seen struct {
	recorded bool
	paths    []path
	mapped   string // the device of multipathd above the disk, such as "dm-0"
	mapper   bool   // multipathd runs
	mounted  bool   // for the node
	readOnly bool   // and it is mounted so
	// content is what was found on the disk: unknown, empty or a file system.
	content string
	// begun says that an earlier agent has begun to make a file system on the disk.
	begun bool

	// Of this attempt:
	failed  map[string]error // ways that could not be used
	tried   map[step]bool    // what was done
	placed  bool             // the pod has the volume
	grouped bool
	made    bool
	group   bool // the pod has an fsGroup
}

// device returns the device to use: that of multipathd, or the first that can be reached.
func (s *seen) device() string {
	if s.mapped != "" {
		return s.mapped
	}
	device := ""
	for _, p := range s.paths {
		switch {
		case p.device != "" && p.up:
			return p.device
		case device == "":
			device = p.device
		}
	}
	return device
}

// next returns the next step to bring a disk to a pod. The error says that there is none. It is pure.
func next(r *record, s *seen) (step, error) {
	if !s.recorded {
		return step{do: writeRecord}, nil
	}
	if !r.Block && s.mounted {
		if s.readOnly && !r.ReadOnly {
			return step{}, errors.New("another pod has the disk read-only on this node; this pod can start when that one has ended, or with readOnly: true")
		}
		return nextPod(r, s), nil
	}
	if st, err := nextWay(s); err != nil || st.do != "" {
		return st, err
	}
	if err := same(s.paths); err != nil {
		return step{}, err
	}
	if r.Block {
		return nextPod(r, s), nil
	}
	return nextMount(r, s)
}

// nextWay returns what is left to do until the disk has a device; no step: it has.
func nextWay(s *seen) (step, error) {
	found := 0
	var errs []error
	for _, p := range s.paths {
		look, wait := step{scan, p.name}, step{awaitDevice, p.name}
		switch log := (step{connect, p.name}); {
		case p.down != "":
			errs = append(errs, fmt.Errorf("%s: %s", p.name, p.down))
		case p.device != "":
			found++
		case s.failed[p.name] != nil:
			errs = append(errs, fmt.Errorf("%s: %w", p.name, s.failed[p.name]))
		case !p.up && !s.tried[log]:
			return log, nil
		case !p.up:
			errs = append(errs, fmt.Errorf("%s: there is no session after the login", p.name))
		case !s.tried[look]:
			return look, nil
		case !s.tried[wait]:
			return wait, nil
		default:
			errs = append(errs, fmt.Errorf("%s: the kernel has found no such disk after %s: the LUN does not exist, or the storage does not give it to this node", p.name, deviceWait))
		}
	}
	if found == 0 {
		return step{}, errors.Join(errs...)
	}
	if wait := (step{do: awaitMap}); s.mapped == "" && s.mapper && len(s.paths) > 1 && !s.tried[wait] {
		return wait, nil
	}
	return step{}, nil
}

// same returns an error if the ways lead to different disks.
func same(paths []path) error {
	var first path
	for _, p := range paths {
		switch {
		case p.device == "" || p.wwid == "":
		case first.wwid == "":
			first = p
		case p.wwid != first.wwid:
			return fmt.Errorf("%s has the disk %s and %s has the disk %s: want ways to one disk", first.name, first.wwid, p.name, p.wwid)
		}
	}
	return nil
}

// nextMount returns what is left to do until the disk is mounted for the node.
func nextMount(r *record, s *seen) (step, error) {
	device := s.device()
	switch {
	case s.content == unknown:
		return step{probe, device}, nil
	case s.content == empty && r.ReadOnly:
		return step{}, fmt.Errorf("/dev/%s is empty and the volume is read-only: want a disk with a file system, or readOnly: false for its first use", device)
	case s.content == empty:
		return step{format, device}, nil
	case !mountable(r.FSType, s.content):
		return step{}, fmt.Errorf("fsType %q: /dev/%s has %s; want that as fsType if it is a file system, or an empty disk", r.FSType, device, s.content)
	case !r.ReadOnly && !s.tried[step{check, device}] && !s.tried[step{format, device}]:
		return step{check, device}, nil
	}
	return step{mountNode, device}, nil
}

// mountable says whether a file system of kind content can be mounted as fsType: ext4 of Linux mounts its forerunners.
func mountable(fsType, content string) bool {
	return content == fsType || fsType == "ext4" && (content == "ext3" || content == "ext2")
}

// nextPod returns what is left to do for the pod.
func nextPod(r *record, s *seen) step {
	switch {
	case !s.placed && r.Block:
		return step{linkPod, s.device()}
	case !s.placed:
		return step{do: bindPod}
	case s.group && !s.grouped && !r.Block && !r.ReadOnly && !s.made:
		return step{do: giveGroup}
	case !s.made:
		return step{do: mark}
	}
	return step{do: done}
}

// ending is what is known of a disk that no pod uses.
type ending struct {
	seen
	busy   string // a device of the disk that something has open exclusively; "": none
	shared bool   // another record has the same disk
	// others are the ways that other disks of this node use.
	others []string
	forgot bool // forgetWays was done
	kept   bool // and left to other disks what they used
	gone   bool // the record is deleted
}

// nextDown returns the next step to release a disk. The error says why it must stay. It is pure.
func nextDown(r *record, s *ending) (step, error) {
	if s.mounted {
		return step{do: unmountNode}, nil
	}
	if !s.shared {
		mine := func(p path) bool { return p.device != "" && (r.Portals == nil || slices.Contains(r.Ours, p.name)) }
		if i := slices.IndexFunc(s.paths, mine); i >= 0 {
			switch {
			case s.busy != "":
				return step{}, fmt.Errorf("/dev/%s is still in use after it was unmounted: see lsblk /dev/%s, and end what uses it", s.busy, s.busy)
			case s.mapped != "":
				return step{flushMap, s.mapped}, nil
			}
			return step{deleteDevice, s.paths[i].device}, nil
		}
	}
	for _, p := range s.paths {
		if p.session != "" && slices.Contains(r.Ours, p.name) && !slices.Contains(s.others, p.name) {
			return step{disconnect, p.name}, nil
		}
	}
	if !s.forgot {
		return step{do: forgetWays}, nil
	}
	return step{do: forgetRecord}, nil
}
