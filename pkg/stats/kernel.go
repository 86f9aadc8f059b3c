package stats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/pod"
)

// kernel measures using files of a Linux kernel.
type kernel struct {
	reader *cgroup.Reader
	proc   string
	parts  Parts

	mu    sync.Mutex
	spots map[string]*spot // by id, for the containers of the last collection
}

// spot is where a container is measured. It never changes while the container runs.
type spot struct {
	path string // in the memory hierarchy
	own  *cgroup.Spot
	pod  *cgroup.Spot // of its whole pod; nil: it was started before pods had cgroups
}

// prepare drops stopped containers.
func (k *kernel) prepare(_ context.Context, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	spots := make(map[string]*spot, len(ids))
	for _, id := range ids {
		if s := k.spots[id]; s != nil {
			spots[id] = s
		}
	}
	k.spots = spots
}

// spot finds a container's spot, once.
func (k *kernel) spot(uid types.UID, c *pod.Container) (*spot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.spots[c.ID]; s != nil {
		return s, nil
	}
	at, err := k.reader.Of(c.HostPID)
	if err != nil {
		return nil, err
	}
	s := &spot{path: at.Path(), own: k.reader.Spot(at)}
	if above, ok := at.Pod(string(uid)); ok {
		s.pod = k.reader.Spot(above)
	}
	k.spots[c.ID] = s
	return s, nil
}

// known is the spot of a container of the last collection; nil: it was not measured.
func (k *kernel) known(id string) *spot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spots[id]
}

var errNoPID = errors.New("cannot measure a container whose process is unknown")

func (k *kernel) container(_ context.Context, uid types.UID, c *pod.Container, whole bool) (Sample, *Sample, error) {
	if c.HostPID == 0 {
		return Sample{}, nil, errNoPID
	}
	at, err := k.spot(uid, c)
	if err != nil {
		return Sample{}, nil, err
	}
	s, err := at.own.Measure()
	if err != nil || !whole || at.pod == nil {
		return s, nil, err
	}
	all, err := at.pod.Measure()
	return s, &all, err
}

func (k *kernel) detail(used *containerUsage) (*cgroup.Detail, string) {
	at := k.known(used.id)
	if at == nil {
		return nil, ""
	}
	d := at.own.Detail(&used.sample)
	return &d, at.path
}

func (k *kernel) oomKills(id string) *uint64 {
	if at := k.known(id); at != nil && at.pod != nil {
		return at.pod.OOMKills()
	}
	return nil
}

func (k *kernel) devices() map[string]string { return k.reader.DeviceNames() }

func (k *kernel) interfaces(c *pod.Container) ([]Interface, error) {
	if c == nil {
		return network(k.proc, "self")
	}
	return network(k.proc, fmt.Sprint(c.HostPID))
}

// system measures this agent and the engine, each by its own cgroup or, at the top of the hierarchies, by its process only; and all pods together.
func (k *kernel) system() (out systemUsage, err error) {
	for _, resource := range []string{"cpu", "memory", "io"} {
		if text, err := os.ReadFile(filepath.Join(k.proc, "pressure", resource)); err == nil { // a kernel may be built without it
			if out.pressure == nil {
				out.pressure = map[string]cgroup.Pressure{}
			}
			out.pressure[resource] = cgroup.ParsePressure(string(text))
		}
	}
	pids := map[string]int{summary.SystemContainerKubelet: os.Getpid(), summary.SystemContainerRuntime: k.parts.Engine.PID()}
	add := func(name string, s Sample, problem error) {
		switch {
		case problem == nil:
			out.containers = append(out.containers, containerUsage{name: name, sample: s})
		case !ended(problem): // the engine is restarting; or no pod was ever started
			err = errors.Join(err, problem)
		}
	}
	for _, name := range []string{summary.SystemContainerKubelet, summary.SystemContainerRuntime} {
		if pid := pids[name]; pid > 0 {
			s, problem := k.process(pid)
			add(name, s, problem)
		}
	}
	if at := k.parts.Cgroups.Place(); at != "" {
		s, problem := k.reader.Measure(at)
		add(summary.SystemContainerPods, s, problem)
	}
	return out, err
}

// process measures the cgroup of a process, or the process if the cgroup is the whole machine's.
func (k *kernel) process(pid int) (Sample, error) {
	at, err := k.reader.Of(pid)
	if err != nil {
		return Sample{}, err
	}
	if at.Own() {
		return k.reader.Measure(at)
	}
	stat, err := os.ReadFile(filepath.Join(k.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Sample{}, fmt.Errorf("cannot measure process %d: %w", pid, err)
	}
	return parseProcess(string(stat))
}

// ticksPerSecond is the unit of times in /proc/PID/stat, the same on every architecture that we are built for.
const ticksPerSecond = 100

// parseProcess parses /proc/PID/stat (proc(5)): after the name in brackets, faults are fields 10 and 12, times 14 and 15, and resident pages 24.
func parseProcess(text string) (s Sample, err error) {
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:]) // the name may contain one
	if len(fields) < 22 {
		return s, fmt.Errorf("cannot measure a process: %q is not a line of /proc/PID/stat", text)
	}
	var n [25]uint64
	for _, field := range []int{10, 12, 14, 15, 24} {
		if n[field], err = strconv.ParseUint(fields[field-3], 10, 64); err != nil {
			return s, fmt.Errorf("cannot measure a process: %w", err)
		}
	}
	s.CPU = time.Duration(n[14]+n[15]) * (time.Second / ticksPerSecond)
	resident, faults, major := n[24]*uint64(os.Getpagesize()), n[10], n[12]
	s.Memory, s.WorkingSet, s.Resident, s.Faults, s.MajFaults = resident, resident, &resident, &faults, &major
	return s, nil
}
