package disk

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/host"
)

// Parts are what a Meter asks beside the host's files; nil: there is no such thing here.
type Parts struct {
	// Layer has the engine measure what a container has written to its root file system, where that has no directory.
	Layer func(ctx context.Context, id string) (bytes uint64, err error)
	// Removed lists the files that processes of the containers hold open though no name leads to them any more.
	Removed func(boxes []Box) ([]Removed, error)
}

// Meter measures pods.
type Meter struct {
	crew  *Crew
	parts Parts

	mu      sync.Mutex
	removed map[types.UID][]Removed
}

// NewMeter makes one that works with crew.
func NewMeter(crew *Crew, parts Parts) *Meter {
	return &Meter{crew: crew, parts: parts, removed: map[types.UID][]Removed{}}
}

// ownDirs are the directories in a pod's own that are measured as volumes, or that containers do not see.
var ownDirs = []string{"volumes", "volume-subpaths", "plugins"}

// part is one figure of a pod.
type part struct {
	what  string
	claim bool
	take  func(Figure)
}

// plan collects the asks for one or more pods.
type plan struct {
	asks  []Ask
	parts []part
	pods  []*Pod
}

func (p *plan) ask(pod *Pod, a Ask, what string, claim bool, take func(Figure)) {
	p.asks, p.parts, p.pods = append(p.asks, a), append(p.parts, part{what, claim, take}), append(p.pods, pod)
}

// Pods measures all subjects, in terms for them together. Volumes of which nothing is known, and containers' parts, are left out.
func (m *Meter) Pods(ctx context.Context, terms Terms, subjects []Subject) map[types.UID]Pod {
	var p plan
	pods := make([]*Pod, len(subjects))
	for i := range subjects {
		pods[i] = m.plan(&p, &subjects[i])
	}
	for i, f := range m.crew.Look(ctx, terms, p.asks) {
		if !f.known() {
			continue
		}
		p.parts[i].take(f)
		if f.Late {
			p.pods[i].Late = append(p.pods[i].Late, Late{What: p.parts[i].what, Of: f.amount(), At: f.At, Claim: p.parts[i].claim})
		}
	}
	out := make(map[types.UID]Pod, len(subjects))
	for i, pod := range pods {
		pod.Volumes = known(pod.Volumes)
		m.addRemoved(pod, &subjects[i])
		out[subjects[i].UID] = *pod
	}
	m.forget()
	return out
}

// known leaves out volumes without any figure.
func known(all []Volume) []Volume {
	out := all[:0]
	for _, v := range all {
		if v.Late || !v.At.IsZero() {
			out = append(out, v)
		}
	}
	return out
}

// plan asks for all figures of a pod.
func (m *Meter) plan(p *plan, s *Subject) *Pod {
	pod := &Pod{Containers: make(map[string]Container, len(s.Boxes)), Volumes: make([]Volume, len(s.Places))}
	for i, place := range s.Places {
		v := &pod.Volumes[i]
		*v = Volume{Volume: place.Volume, Claim: place.Claim, EmptyDir: place.EmptyDir, Memory: place.Memory, Own: place.Own}
		what, claim := fmt.Sprintf("volume %q", place.Volume), place.Claim != ""
		if place.Own {
			p.ask(pod, askDisk(place.Path), what, claim, func(f Figure) { v.Disk, v.At, v.Late = f.Disk, f.At, f.Late })
			continue
		}
		p.ask(pod, askDisk(place.Path), what, claim, func(f Figure) {
			v.Disk = f.Disk
			v.Used, v.InodesUsed = 0, 0 // those of all that lies there
		})
		p.ask(pod, m.crew.askTree(place.Path), what, claim, func(f Figure) {
			v.Used, v.InodesUsed, v.At, v.Late = f.Used, f.InodesUsed, f.At, f.Late
		})
	}
	for _, box := range s.Boxes {
		m.planBox(p, pod, box)
	}
	if s.Dir != "" {
		p.ask(pod, m.crew.askTree(s.Dir, ownDirs...), "hosts file, resolv.conf and termination messages", false, func(f Figure) { pod.Files = pod.Files.add(f.amount()) })
	}
	if files := mounted(s.Boxes); len(files) > 0 {
		p.ask(pod, askFiles(s.UID, files), "files that the engine puts into containers", false, func(f Figure) { pod.Files = pod.Files.add(f.amount()) })
	}
	if m.parts.Removed != nil && len(s.Boxes) > 0 {
		p.ask(pod, m.askRemoved(s), "removed files", false, func(Figure) {})
	}
	return pod
}

func (m *Meter) planBox(p *plan, pod *Pod, box Box) {
	pod.Containers[box.ID] = Container{Name: box.Name, Log: box.Log}
	change := func(do func(*Container)) {
		c := pod.Containers[box.ID]
		do(&c)
		pod.Containers[box.ID] = c
	}
	layer := Ask{}
	switch {
	case box.Layer != "":
		layer = m.crew.askTree(box.Layer)
	case m.parts.Layer != nil:
		layer = m.askLayer(box.ID)
	}
	if layer.Begin != nil {
		p.ask(pod, layer, fmt.Sprintf("root file system of container %q", box.Name), false, func(f Figure) {
			change(func(c *Container) { c.Layer = new(f.amount()) })
		})
	}
	for _, dir := range box.Volumes {
		p.ask(pod, m.crew.askTree(dir), fmt.Sprintf("volume of the image of container %q", box.Name), false, func(f Figure) {
			change(func(c *Container) {
				sum := f.amount()
				if c.Volumes != nil {
					sum = sum.add(*c.Volumes)
				}
				c.Volumes = &sum
			})
		})
	}
}

// mounted are the engine's files of all containers, each once.
func mounted(boxes []Box) (all []string) {
	for _, box := range boxes {
		for _, path := range box.Mounted {
			if !slices.Contains(all, path) {
				all = append(all, path)
			}
		}
	}
	return all
}

func askFiles(uid types.UID, paths []string) Ask {
	return Ask{Key: "engine's files of pod " + string(uid), Begin: func() Pass {
		return func(func(host.Disk) bool) (sum host.Disk, _ bool, _ error) {
			for _, path := range paths {
				if s, err := examine(path); err == nil { // else it has gone
					sum.Used += s.bytes
					sum.InodesUsed++
				}
			}
			return sum, true, nil
		}
	}}
}

// engineMeasures is how long the engine may take for one container.
const engineMeasures = 30 * time.Second

func (m *Meter) askLayer(id string) Ask {
	return Ask{Key: "root file system of container " + id, Begin: func() Pass {
		return func(func(host.Disk) bool) (host.Disk, bool, error) {
			ctx, cancel := context.WithTimeout(context.Background(), engineMeasures)
			defer cancel()
			bytes, err := m.parts.Layer(ctx, id)
			return host.Disk{Used: bytes}, true, err
		}
	}}
}

func (m *Meter) askRemoved(s *Subject) Ask {
	uid, boxes := s.UID, s.Boxes
	return Ask{Key: removedKey(uid), Begin: func() Pass {
		return func(func(host.Disk) bool) (host.Disk, bool, error) {
			all, err := m.parts.Removed(boxes)
			if err == nil {
				m.mu.Lock()
				m.removed[uid] = all
				m.mu.Unlock()
			}
			return host.Disk{}, true, err
		}
	}}
}

func removedKey(uid types.UID) string { return "removed files of pod " + string(uid) }

// addRemoved adds the files that have no name any more to where they lie.
func (m *Meter) addRemoved(pod *Pod, s *Subject) {
	m.mu.Lock()
	all := m.removed[s.UID]
	m.mu.Unlock()
	if len(all) == 0 {
		return
	}
	extra := make(map[string]Amount, len(all)) // by volume
	for _, r := range all {
		of := Amount{r.Bytes, 1}
		where, volume := locate(s, r)
		switch where {
		case inVolume:
			extra[volume] = extra[volume].add(of)
		case inContainer:
			if c, ok := pod.Containers[r.Container]; ok {
				sum := of
				if c.Layer != nil {
					sum = sum.add(*c.Layer)
				}
				c.Layer = &sum
				pod.Containers[r.Container] = c
			}
		case inPod:
			pod.Files = pod.Files.add(of)
		}
	}
	for i := range pod.Volumes {
		v := &pod.Volumes[i]
		v.Used += extra[v.Volume].Bytes
		v.InodesUsed += extra[v.Volume].Files
	}
}

// forget drops what is kept of pods that are not asked for any more.
func (m *Meter) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.removed {
		if !m.crew.knows(removedKey(uid)) {
			delete(m.removed, uid)
		}
	}
}
