package disk

import (
	"strings"
)

// Removed is a deleted file that still occupies disk space because a process has it open or mapped.
type Removed struct {
	Container string // id of the container whose process has it
	Bytes     uint64
	mountPoint
}

// mountPoint is a line of a mountinfo.
type mountPoint struct {
	FSType string
	Root   string // mounted directory of the file system
	Path   string // path as seen by a process
}

// where says what a removed file counts against.
type where int

const (
	elsewhere   where = iota // not the pod: memory, a claim, the host
	inVolume                 // a volume
	inContainer              // its container: the root file system, or a volume of its image
	inPod                    // the pod's own files
)

// locate decides what a removed file of s counts against. It is pure.
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
				return elsewhere, "" // a separate file system includes such files in its usage
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

// below says whether root, a directory's path in its own file system, is dir on the host or below it. The mount point of dir's file system is unknown
// here, so it compares the last elements; one of them is a pod's or a volume's unique name.
func below(root, dir string, elements int) bool {
	all := strings.Split(strings.Trim(dir, "/"), "/")
	tail := "/" + strings.Join(all[max(0, len(all)-elements):], "/") + "/"
	return strings.Contains(root+"/", tail)
}
