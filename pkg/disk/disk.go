// Package disk measures what trees of files and file systems take of this host's disks, so that no tree and no file system that hangs
// holds up the others (kubelet).
//
//	Subject (places of a pod) --Meter--> asks --Crew, bounded, piece by piece--> figures, the last known ones of what is late --> Pod
//
// A Walk goes by open directories and takes little memory however many files there are. The kernel cannot be told to give up on a file
// system that hangs: such a measurement keeps its goroutine, and is not begun a second time before it ends.
package disk

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/host"
)

// Amount is what files take.
type Amount struct{ Bytes, Files uint64 }

func (a Amount) add(b Amount) Amount { return Amount{a.Bytes + b.Bytes, a.Files + b.Files} }

// Figure is what a measurement has found. Of a tree it has Used and InodesUsed alone.
type Figure struct {
	host.Disk
	At time.Time // when the measurement began; zero: none has come to its end yet
	// Late: a newer measurement did not end in time. Of a tree the figure is then the larger of the last one and of what the newer one has
	// counted so far.
	Late bool
	Err  error // why there is no figure, if At is zero and nothing is Late
}

func (f Figure) amount() Amount { return Amount{f.Used, f.InodesUsed} }

func (f Figure) known() bool { return f.Late || !f.At.IsZero() }

// Place is where a volume of a pod lies.
type Place struct {
	Volume string // name in the spec
	Claim  string // name of the PersistentVolumeClaim; "": none
	Path   string
	Own    bool // Path is a separate file system
	// EmptyDir says that what is used counts against the volume's sizeLimit and, Memory aside, against ephemeral-storage.
	EmptyDir, Memory bool
}

// Box is where a container of a pod puts files.
type Box struct {
	ID, Name string
	Layer    string // directory of what it has written to its root file system; "": only the engine can measure it, if at all
	Log      *Amount
	Volumes  []string // directories of volumes that the engine has made for it alone
	Mounted  []string // single files of the engine that it can write to; containers of a pod may share them
	PID      int      // its first process; 0: none runs, or is known
}

// Subject is a pod to be measured.
type Subject struct {
	UID    types.UID
	Places []Place
	Boxes  []Box
	Dir    string // the pod's own directory; "": it is not measured
}

// Volume is what a volume holds. What is a separate file system (memory, a local volume) has that file system's capacity; a directory
// among others has that of the one on which it lies, with what the directory itself takes as Used.
type Volume struct {
	Volume, Claim string // as in Place
	host.Disk
	At               time.Time // of the figures; zero: none is complete yet
	Late             bool      // as in Figure
	EmptyDir, Memory bool
	Own              bool
}

// Container is what a container has put on disks. nil: not known.
type Container struct {
	Name                string
	Layer, Log, Volumes *Amount
}

// Sum is all of it.
func (c Container) Sum() (sum Amount) {
	for _, a := range []*Amount{c.Layer, c.Log, c.Volumes} {
		if a != nil {
			sum = sum.add(*a)
		}
	}
	return sum
}

// Pod is what a pod takes.
type Pod struct {
	Volumes    []Volume
	Containers map[string]Container // by id
	Files      Amount               // of single files put into its containers: hosts, resolv.conf, termination messages
	Late       []Late
}

// OnImages is what counts against ephemeral storage and lies where the engine keeps images: root file systems, and volumes of images.
func (p Pod) OnImages() (sum Amount) {
	for _, c := range p.Containers {
		for _, a := range []*Amount{c.Layer, c.Volumes} {
			if a != nil {
				sum = sum.add(*a)
			}
		}
	}
	return sum
}

// OnNode is what counts against ephemeral storage and lies elsewhere: volumes without a separate file system, single files, and logs.
func (p Pod) OnNode() Amount {
	sum := p.Files
	for _, v := range p.Volumes {
		if v.Claim == "" && !v.Own {
			sum = sum.add(Amount{v.Used, v.InodesUsed})
		}
	}
	for _, c := range p.Containers {
		if c.Log != nil {
			sum = sum.add(*c.Log)
		}
	}
	return sum
}

// Ephemeral is what counts against the pod's ephemeral storage.
func (p Pod) Ephemeral() Amount { return p.OnNode().add(p.OnImages()) }

// Unknown says whether some of the pod's ephemeral storage has never been measured to its end.
func (p Pod) Unknown() bool {
	for _, l := range p.Late {
		if !l.Claim && l.At.IsZero() {
			return true
		}
	}
	return false
}

// Late is a part of a pod that was not measured in time.
type Late struct {
	What  string    // such as: volume "data"
	Of    Amount    // what it counts as meanwhile
	At    time.Time // of the last complete figure; zero: there is none
	Claim bool      // it is no part of the pod's ephemeral storage
}

// Terms say how fresh figures have to be, and how long they are waited for.
type Terms struct {
	Age      time.Duration // figures of this age need not be measured again
	Patience time.Duration
	Urgent   bool // also what was expensive a short time ago is measured again
}
