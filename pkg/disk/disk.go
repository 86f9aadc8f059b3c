// Package disk measures the disk usage of file trees and file systems on this host, so that no hanging tree or file system delays the others
// (kubelet).
//
//	Subject (places of a pod) --Meter--> requests --Crew, bounded, in pieces--> figures, the last known ones if late --> Pod
//
// Files have one Crew, and each program that measures volumes has another.
//
// A Walk goes by open directories and takes little memory however many files there are. The kernel cannot be told to give up on a file
// system that hangs: such a measurement keeps its goroutine, and is not begun a second time before it ends.
package disk

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/host"
)

// Amount is the disk usage of files.
type Amount struct{ Bytes, Files uint64 }

func (a Amount) add(b Amount) Amount { return Amount{a.Bytes + b.Bytes, a.Files + b.Files} }

// Figure is the result of a measurement. For a tree it has only Used and InodesUsed.
type Figure struct {
	host.Disk
	At time.Time // when the measurement began; zero: none has finished yet
	// Late: a newer measurement did not end in time. For a tree the figure is then the larger of the last result and the newer count so far.
	Late bool
	Err  error // why there is no figure, if At is zero and nothing is Late
}

func (f Figure) amount() Amount { return Amount{f.Used, f.InodesUsed} }

func (f Figure) known() bool { return f.Late || !f.At.IsZero() }

// Source is a program that measures its volumes, such as a CSI driver. One that hangs delays neither files nor other programs. A Source can be
// compared.
type Source interface {
	// Program names the program, Volume the volume: there is one measurement of it at a time.
	Program() string
	Volume() string
	// Measure returns when it has an answer. An error that is fs.ErrNotExist says that there is no such volume any more, ErrBusy that the volume
	// cannot be measured now; after other errors the last figure stays.
	Measure(ctx context.Context) (host.Disk, error)
	// Health is what the last answer said of the volume; nil: nothing.
	Health() *Health
}

// ErrBusy is that something else is done with a volume, which may not wait.
var ErrBusy = errors.New("the volume is busy")

// Health is what a program says of its volume beside figures.
type Health struct {
	Abnormal bool
	Message  string
}

// Place is where a volume of a pod lies.
type Place struct {
	Volume string // name in the spec
	Claim  string // name of the PersistentVolumeClaim; "": none
	Path   string
	Own    bool // Path is a separate file system
	// Source measures the volume instead of the kernel; nil: the kernel does.
	Source Source
	// EmptyDir says that what is used counts against the volume's sizeLimit and, Memory aside, against ephemeral-storage.
	EmptyDir, Memory bool
}

// Box is where a container of a pod writes files.
type Box struct {
	ID, Name string
	Layer    string // directory of its writable layer; "": only the engine can measure it, if at all
	Log      *Amount
	Volumes  []string // directories of volumes that the engine created only for it
	Mounted  []string // single files of the engine that it can write to; containers of a pod may share them
	PID      int      // its first process; 0: none, or unknown
}

// Subject is a pod to measure.
type Subject struct {
	UID    types.UID
	Places []Place
	Boxes  []Box
	Dir    string // the pod's own directory; "": not measured
}

// Volume is the usage of a volume. A separate file system (memory, a local volume) has its own capacity. A directory has the capacity of the file
// system that contains it, and its own usage as Used.
type Volume struct {
	Volume, Claim string // as in Place
	host.Disk
	At               time.Time // of the figures; zero: not complete yet
	Late             bool      // as in Figure
	EmptyDir, Memory bool
	Own              bool
	Health           *Health // nil: nothing is known of it
}

// Container is a container's disk usage. nil: unknown.
type Container struct {
	Name                string
	Layer, Log, Volumes *Amount
}

// Sum is the total.
func (c Container) Sum() (sum Amount) {
	for _, a := range []*Amount{c.Layer, c.Log, c.Volumes} {
		if a != nil {
			sum = sum.add(*a)
		}
	}
	return sum
}

// Pod is a pod's disk usage.
type Pod struct {
	Volumes    []Volume
	Containers map[string]Container // by id
	Files      Amount               // of single files mounted into its containers: hosts, resolv.conf, termination messages
	// Late are parts that were measured too late, except for volumes of a Source: no limit covers them, and their figures may be a minute old.
	Late []Late
}

// OnImages is the ephemeral storage on the file system of the engine's images: root file systems, and image volumes.
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

// OnNode is the ephemeral storage elsewhere: volumes without a separate file system, single files, and logs.
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

// Ephemeral is the pod's use of ephemeral storage.
func (p Pod) Ephemeral() Amount { return p.OnNode().add(p.OnImages()) }

// Unknown says whether a part of the pod's ephemeral storage has never been completely measured.
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
	Of    Amount    // the usage assumed meanwhile
	At    time.Time // of the last complete figure; zero: there is none
	Claim bool      // not part of the pod's ephemeral storage
	// System: it was one request to the kernel, for the figures of a file system. That file system does not answer, however many files it has.
	System bool
}

// Terms say how recent figures must be, and how long to wait for them.
type Terms struct {
	Age      time.Duration // figures of this age need no new measurement
	Patience time.Duration
	Urgent   bool // measures even recently measured expensive trees again
}
