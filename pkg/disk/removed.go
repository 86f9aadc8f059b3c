package disk

import (
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
				return elsewhere, "" // a separate file system counts such files by itself
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
