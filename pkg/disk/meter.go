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

// Parts are the sources of a Meter besides the host's files; each may be nil.
type Parts struct {
	// Layer has the engine measure a container's writable layer if that has no directory.
	Layer func(ctx context.Context, id string) (bytes uint64, err error)
	// Removed lists deleted files that processes of the containers hold open.
	Removed func(boxes []Box) ([]Removed, error)
}

// Meter measures pods.
type Meter struct {
	crew  *Crew
	parts Parts

	mu       sync.Mutex
	removed  map[types.UID][]Removed
	programs map[string]*programCrew // by Source.Program
	late     uint64                  // as in State, of programs that were dropped
}

// programCrew waits for a program.
type programCrew struct {
	*Crew
	asked time.Time
}

// NewMeter returns a Meter that works with crew.
func NewMeter(crew *Crew, parts Parts) *Meter {
	return &Meter{crew: crew, parts: parts, removed: map[types.UID][]Removed{}, programs: map[string]*programCrew{}}
}

// ownDirs are the subdirectories of a pod's directory that are measured as volumes, or that containers do not see.
var ownDirs = []string{"volumes", "volume-subpaths", "plugins"}

// part is one figure of a pod.
type part struct {
	crew  *Crew
	what  string
	claim bool
	take  func(Figure)

	system bool // as in Late
}

// plan collects the requests for one or more pods.
type plan struct {
	crew  *Crew // of files
	asks  []Ask
	parts []part
	pods  []*Pod
}

func (p *plan) ask(pod *Pod, a Ask, what string, claim bool, take func(Figure)) {
	p.askCrew(p.crew, pod, a, what, claim, take)
}

func (p *plan) askCrew(crew *Crew, pod *Pod, a Ask, what string, claim bool, take func(Figure)) {
	p.asks, p.parts, p.pods = append(p.asks, a), append(p.parts, part{crew: crew, what: what, claim: claim, take: take}), append(p.pods, pod)
}

// askSystem asks the kernel for the figures of the file system that contains path.
func (p *plan) askSystem(pod *Pod, path, what string, claim bool, take func(Figure)) {
	p.ask(pod, askDisk(path), what, claim, take)
	p.parts[len(p.parts)-1].system = true
}

// look has all crews measure at the same time.
func (p *plan) look(ctx context.Context, terms Terms) []Figure {
	var crews []*Crew
	asks, places := map[*Crew][]Ask{}, map[*Crew][]int{}
	for i, part := range p.parts {
		if asks[part.crew] == nil {
			crews = append(crews, part.crew)
		}
		asks[part.crew], places[part.crew] = append(asks[part.crew], p.asks[i]), append(places[part.crew], i)
	}
	tasks := map[*Crew][]*task{}
	var files, programs []<-chan struct{}
	for _, crew := range crews {
		if crew == p.crew {
			tasks[crew], files = crew.begin(terms, asks[crew])
			continue
		}
		begun, wait := crew.begin(Terms{Age: max(terms.Age, programAge)}, asks[crew])
		tasks[crew], programs = begun, append(programs, wait...)
	}
	begin := p.crew.clock.Now()
	p.crew.await(ctx, min(terms.Patience, programPatience), programs)
	p.crew.await(ctx, terms.Patience-p.crew.clock.Since(begin), files)
	out := make([]Figure, len(p.asks))
	for _, crew := range crews {
		for i, f := range crew.figures(tasks[crew]) {
			out[places[crew][i]] = f
		}
	}
	return out
}

// Pods measures all subjects, in terms for all together. It omits volumes and container parts without any figure.
func (m *Meter) Pods(ctx context.Context, terms Terms, subjects []Subject) map[types.UID]Pod {
	p := plan{crew: m.crew}
	pods := make([]*Pod, len(subjects))
	for i := range subjects {
		pods[i] = m.plan(&p, &subjects[i])
	}
	for i, f := range p.look(ctx, terms) {
		if !f.known() {
			continue
		}
		p.parts[i].take(f)
		if f.Late && p.parts[i].crew == m.crew {
			p.pods[i].Late = append(p.pods[i].Late, Late{What: p.parts[i].what, Of: f.amount(), At: f.At, Claim: p.parts[i].claim, System: p.parts[i].system})
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

// known drops volumes without any figure.
func known(all []Volume) []Volume {
	out := all[:0]
	for _, v := range all {
		if v.Late || !v.At.IsZero() {
			out = append(out, v)
		}
	}
	return out
}

// plan requests all figures of a pod.
func (m *Meter) plan(p *plan, s *Subject) *Pod {
	pod := &Pod{Containers: make(map[string]Container, len(s.Boxes)), Volumes: make([]Volume, len(s.Places))}
	for i, place := range s.Places {
		v := &pod.Volumes[i]
		*v = Volume{Volume: place.Volume, Claim: place.Claim, EmptyDir: place.EmptyDir, Memory: place.Memory, Own: place.Own}
		what, claim := fmt.Sprintf("volume %q", place.Volume), place.Claim != ""
		if place.Source != nil {
			p.askCrew(m.program(place.Source.Program()), pod, askSource(place.Source), what, true, func(f Figure) {
				v.Disk, v.At, v.Late, v.Health = f.Disk, f.At, f.Late, place.Source.Health()
			})
			continue
		}
		if place.Own {
			p.askSystem(pod, place.Path, what, claim, func(f Figure) { v.Disk, v.At, v.Late = f.Disk, f.At, f.Late })
			continue
		}
		p.askSystem(pod, place.Path, what, claim, func(f Figure) {
			v.Disk = f.Disk
			v.Used, v.InodesUsed = 0, 0 // the file system's total usage
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

const (
	// programCalls is how many volumes a program measures at a time.
	programCalls = 4
	// programTime is how long it may take for one, as upstream's kubelet lets a CSI driver.
	programTime = 2 * time.Minute
	// programAge is how old its figures may be at least, as upstream's kubelet measures volumes once a minute (kubernetes
	// pkg/kubelet/kubelet.go, volumeStatsAggPeriod).
	programAge = time.Minute
	// programPatience is how long programs are waited for, at most.
	programPatience = time.Second
)

// program is the crew that waits for a program.
func (m *Meter) program(name string) *Crew {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.programs[name]
	if c == nil {
		c = &programCrew{Crew: NewCrew(m.crew.clock, programCalls)}
		c.rest = 1 // to wait costs this host nothing
		m.programs[name] = c
	}
	c.asked = m.crew.clock.Now()
	return c.Crew
}

// State is the progress of all measurements, of files and of programs.
func (m *Meter) State() State {
	s := m.crew.State()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Late += m.late
	for _, c := range m.programs {
		of := c.State()
		s.Running, s.Hung, s.Late = s.Running+of.Running, s.Hung+of.Hung, s.Late+of.Late
	}
	return s
}

func askSource(s Source) Ask {
	return Ask{Key: "volume " + s.Volume() + " of " + s.Program(), Begin: func() Pass {
		return func(func(host.Disk) bool) (host.Disk, bool, error) {
			ctx, cancel := context.WithTimeout(context.Background(), programTime)
			defer cancel()
			d, err := s.Measure(ctx)
			return d, true, err
		}
	}}
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
				if s, err := examine(path); err == nil { // otherwise it was deleted
					sum.Used += s.bytes
					sum.InodesUsed++
				}
			}
			return sum, true, nil
		}
	}}
}

// engineMeasures is the engine's time limit for one container.
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

// addRemoved adds deleted files to the places where they lie.
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

// forget drops the data of pods and programs that are no longer requested.
func (m *Meter) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.removed {
		if !m.crew.knows(removedKey(uid)) {
			delete(m.removed, uid)
		}
	}
	now := m.crew.clock.Now()
	for name, c := range m.programs {
		// One that was just handed out is about to have tasks.
		if now.Sub(c.asked) >= forgotten && c.unused(now) {
			m.late += c.State().Late
			delete(m.programs, name)
		}
	}
}
