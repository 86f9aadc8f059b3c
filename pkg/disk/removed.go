package disk

import (
	"bytes"
	"strings"
)

// Removed is a file that takes room on a disk and has no name any more, since a process has it open or mapped.
type Removed struct {
	Container string // id of the container whose process has it
	Bytes     uint64
	mountPoint
}

// mountPoint is a line of a mountinfo.
type mountPoint struct {
	FSType string
	Root   string // which directory of the file system is mounted
	Path   string // where a process sees it
}

// where is to whom a removed file counts.
type where int

const (
	elsewhere   where = iota // not to the pod: memory, a claim, the host
	inVolume                 // to a volume
	inContainer              // to its container: in its root file system, or a volume of its image
	inPod                    // to the pod's own files
)

// locate finds out where a removed file of s lies. It is pure.
func locate(s *Subject, r Removed) (where, string) {
	switch r.FSType {
	case "tmpfs", "ramfs", "hugetlbfs", "proc", "devtmpfs":
		return elsewhere, ""
	}
	if r.Path == "/" {
		return inContainer, ""
	}
	for _, p := range s.Places {
		if below(r.Root, p.Path, 4) {
			if p.Own || p.Claim != "" {
				return elsewhere, "" // a file system of its own counts such files by itself
			}
			return inVolume, p.Volume
		}
	}
	for _, b := range s.Boxes {
		if b.ID != r.Container {
			continue
		}
		for _, dir := range b.Volumes {
			if below(r.Root, dir, 2) {
				return inContainer, ""
			}
		}
	}
	if s.Dir != "" && below(r.Root, s.Dir, 2) {
		return inPod, ""
	}
	return elsewhere, ""
}

// below says whether root, a directory's path in its own file system, is that of dir on the host or lies in it. On which file system dir
// lies is not known here, so that its last elements have to do; one of them is a pod's or a volume's unique name.
func below(root, dir string, elements int) bool {
	all := strings.Split(strings.Trim(dir, "/"), "/")
	tail := "/" + strings.Join(all[max(0, len(all)-elements):], "/") + "/"
	return strings.Contains(root+"/", tail)
}

// mountOf finds the line of a /proc/PID/mountinfo with that number (proc_pid_mountinfo(5)).
func mountOf(mountinfo []byte, id string) (m mountPoint, ok bool) {
	for line := range bytes.Lines(mountinfo) {
		fields := strings.Fields(string(line))
		if len(fields) < 10 || fields[0] != id {
			continue
		}
		for i := 6; i+1 < len(fields); i++ {
			if fields[i] == "-" {
				return mountPoint{fields[i+1], unescape(fields[3]), unescape(fields[4])}, true
			}
		}
	}
	return m, false
}

// unescape undoes the \ooo that the kernel writes for space, tab, newline and backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountID reads the number of the mount from a /proc/PID/fdinfo/FD.
func mountID(fdinfo []byte) string {
	for line := range bytes.Lines(fdinfo) {
		if value, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// mappedRemoved gives the ranges of addresses, as /proc/PID/map_files names them, at which a /proc/PID/maps has files without a name.
func mappedRemoved(maps []byte) (ranges []string) {
	for line := range bytes.Lines(maps) {
		if !bytes.HasSuffix(line, []byte(" (deleted)\n")) {
			continue
		}
		if fields := bytes.Fields(line); len(fields) > 5 && string(fields[4]) != "0" {
			ranges = append(ranges, mapName(string(fields[0])))
		}
	}
	return ranges
}

// mapName is a range without the zeros in front of its addresses.
func mapName(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	zeros := func(s string) string {
		if t := strings.TrimLeft(s, "0"); t != "" {
			return t
		}
		return "0"
	}
	return zeros(from) + "-" + zeros(to)
}
