package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

// machine is a node with pods and images that use memory and disk. It logs the guard's actions.
type machine struct {
	mu     sync.Mutex
	pods   map[string]candidate
	images map[string]docker.ImageUse // each uses its Size of the disk
	disk   uint64                     // bytes of disk that are free without images and pods
	memory uint64                     // likewise
	linger time.Duration              // of an evicted pod
	ending map[string]chan struct{}
	alarm  chan struct{}
	// changed is sent when the conditions change; said puts that first.
	changed wake.Signal
	armed   int64
	log     []string
	// counted are the signals that caused evictions, with the age of the figures.
	counted []string
}

func (m *machine) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *machine) said() string {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.changed:
		m.log = append([]string{"changed"}, m.log...)
	default:
	}
	out := strings.Join(m.log, "\n")
	m.log = nil
	return out
}

func (m *machine) Arm(node, _ int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = node
	return nil
}

func (m *machine) C() <-chan struct{} { return m.alarm }

func (m *machine) left() (memory, disk uint64) {
	memory, disk = m.memory, m.disk
	for _, c := range m.pods {
		memory -= min(memory, *c.stats.Memory.WorkingSetBytes)
		disk -= min(disk, c.disk.Ephemeral().Bytes)
	}
	for _, i := range m.images {
		disk -= min(disk, uint64(i.Size))
	}
	return memory, disk
}

func (m *machine) Node(context.Context) *summary.NodeStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	memory, disk := m.left()
	fs := &summary.FsStats{AvailableBytes: &disk, CapacityBytes: new(uint64(10_000))}
	return &summary.NodeStats{
		Memory: &summary.MemoryStats{AvailableBytes: &memory, WorkingSetBytes: new(10_000 - memory)},
		Fs:     fs, Runtime: &summary.RuntimeStats{ImageFs: fs},
	}
}

func (m *machine) Summary(context.Context, bool) *summary.Summary {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &summary.Summary{}
	for name, c := range m.pods {
		c.stats.PodRef.UID = name
		out.Pods = append(out.Pods, *c.stats)
	}
	return out
}

func (m *machine) Snapshot() (views []pod.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, c := range m.pods {
		view := pod.View{Pod: c.pod}
		if m.ending[name] != nil {
			view.Phase = pod.Terminating
		}
		views = append(views, view)
	}
	return views
}

func (m *machine) Evict(uid types.UID, e pod.Eviction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("evict %s %s%s", uid, e.Message, e.Grace)
	gone := make(chan struct{})
	m.ending[string(uid)] = gone
	time.AfterFunc(m.linger, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.pods, string(uid))
		close(gone)
	})
}

func (m *machine) Vacated(uid types.UID) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ending[string(uid)]
}

func (m *machine) RemoveLeftovers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("sweep")
}

func (m *machine) Evicted(signal string, age time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counted = append(m.counted, fmt.Sprintf("%s %s", signal, age))
}

func (m *machine) ImageRemoved(string) {}

func (m *machine) ImageUses(context.Context) (all []docker.ImageUse, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.images {
		all = append(all, i)
	}
	return all, nil
}

func (m *machine) RemoveImage(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("remove image %s", id)
	delete(m.images, id)
	return nil
}

func (m *machine) NodeEvent(_, reason, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("event %s: %s", reason, message)
}

func (m *machine) PodEvent(string, string, string, string, string, string) {}

// machineDisks are the disks of a machine.
type machineDisks struct{ *machine }

func (m machineDisks) Pods(_ context.Context, _ disk.Terms, views, _ []pod.View) map[types.UID]disk.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[types.UID]disk.Pod{}
	for _, view := range views {
		out[view.Pod.UID] = *m.pods[string(view.Pod.UID)].disk
	}
	return out
}

func (m machineDisks) ImageDisk(context.Context) (host.Disk, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, disk := m.left()
	return host.Disk{Capacity: 10_000, Available: disk}, nil
}

func (m machineDisks) ImagesApart(context.Context) (bool, error) { return false, nil }

func (m *machine) parts() Parts {
	return Parts{Pressure: &Pressure{}, Pods: m, Disks: machineDisks{m}, Figures: m, Images: m, Counts: m, Events: m, Alarm: m, Node: m.changed, Clock: clock.RealClock{}}
}

func (m *machine) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// start runs a guard of m until the test ends.
func (m *machine) start(t *testing.T, settings Settings, policy ImagePolicy) *Guard {
	t.Helper()
	m.ending, m.alarm, m.changed = map[string]chan struct{}{}, make(chan struct{}, 1), wake.New()
	thresholds, err := Thresholds(settings)
	if err != nil {
		t.Fatal(err)
	}
	g := New(Config{Thresholds: thresholds, Transition: 30 * time.Second, Images: policy}, m.parts())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g
}

func expect(t *testing.T, what, got string, want ...string) {
	t.Helper()
	if got != strings.Join(want, "\n") {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, strings.Join(want, "\n"))
	}
}

// TestRelieveMemory: at most one pod is evicted at a time, the next one after it has ended if there is still too little
// memory. The kernel's alarm triggers a check.
func TestRelieveMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{memory: 10_000, disk: 10_000, linger: 3 * time.Second, pods: map[string]candidate{
			"a": user("a", 0, "", 3000, 0, 1), "b": user("b", 0, "", 2000, 0, 1), "dear": user("dear", 5, "", 4000, 0, 1)}}
		g := m.start(t, Settings{Hard: map[string]string{"memory.available": "500"}}, ImagePolicy{High: 100})
		expect(t, "at first", m.said())
		if m.set(func() {}); m.armed != 500 {
			t.Errorf("armed at %d more bytes, want 500", m.armed)
		}
		m.set(func() { m.memory = 5_000; m.alarm <- struct{}{} })
		time.Sleep(time.Second)
		expect(t, "after an alarm", m.said(), "changed", "event EvictionThresholdMet: Attempting to reclaim memory",
			"evict a The node was low on resource: memory. Threshold quantity: 500, available: 0. Container c0 was using 3000, request is 0, has larger consumption of memory. 1s")
		if got := g.parts.Pressure.Conditions(); !slices.Equal(got, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
			t.Errorf("conditions %v", got)
		}
		time.Sleep(time.Second)
		expect(t, "while it ends", m.said())
		time.Sleep(3 * time.Second)
		expect(t, "when it has gone", m.said(), "event EvictionThresholdMet: Attempting to reclaim memory",
			"evict b The node was low on resource: memory. Threshold quantity: 500, available: 0. Container c0 was using 2000, request is 0, has larger consumption of memory. 1s")
		time.Sleep(20 * time.Second)
		expect(t, "there is enough", m.said())
		time.Sleep(30 * time.Second)
		expect(t, "after the transition period", m.said(), "changed")
		m.set(func() {
			expect(t, "counted", strings.Join(m.counted, "\n"), "memory.available 0s", "memory.available 0s")
		})
	})
}

// TestRelieveDisk: unused images and containers are removed before pods are evicted.
func TestRelieveDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{memory: 10_000, disk: 10_000, pods: map[string]candidate{"a": user("a", 0, "", 0, 4000, 1)}, images: map[string]docker.ImageUse{
			"used": {ID: "used", Size: 1000, Used: true}, "pause": {ID: "pause", Size: 500, Pinned: true}, "old": {ID: "old", Size: 3500}}}
		m.start(t, Settings{Hard: map[string]string{"nodefs.available": "20%"}, MinimumReclaim: map[string]string{"nodefs.available": "5%"}},
			ImagePolicy{High: 100, MinAge: time.Minute})
		time.Sleep(time.Second)
		// 1000 are free. The only removable image is too young.
		expect(t, "at first", m.said(), "changed", "event EvictionThresholdMet: Attempting to reclaim ephemeral-storage", "sweep",
			"evict a The node was low on resource: ephemeral-storage. Threshold quantity: 2000, available: 1k. Container c0 was using 2000, request is 0, has larger consumption of ephemeral-storage. 1s")
		time.Sleep(2 * time.Minute)
		m.said()
		m.set(func() { m.disk = 6500 })
		time.Sleep(15 * time.Second)
		expect(t, "with an image", m.said(), "changed", "event EvictionThresholdMet: Attempting to reclaim ephemeral-storage", "sweep", "remove image old")
		time.Sleep(time.Minute)
		expect(t, "then", m.said(), "changed")
	})
}

// TestCollectImages: images are removed by their age, and the oldest first if there are too many.
func TestCollectImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{disk: 10_000, images: map[string]docker.ImageUse{
			"used": {ID: "used", Size: 3000, Used: true}, "pause": {ID: "pause", Size: 1000, Pinned: true}, "a": {ID: "a", Size: 1000}, "b": {ID: "b", Size: 1000}}}
		m.start(t, Settings{}, ImagePolicy{High: 85, Low: 80, MinAge: time.Minute, MaxAge: time.Hour})
		time.Sleep(6 * time.Minute)
		expect(t, "40% are free", m.said())
		m.set(func() {
			m.images["c"] = docker.ImageUse{ID: "c", Size: 3000}
			b := m.images["b"]
			b.Used = true
			m.images["b"] = b
		})
		time.Sleep(5 * time.Minute)
		expect(t, "10% are free, c has just come", m.said(), "remove image a")
		m.set(func() {
			m.images["d"] = docker.ImageUse{ID: "d", Size: 900}
			b := m.images["b"]
			b.Used = false
			m.images["b"] = b
		})
		time.Sleep(5 * time.Minute)
		expect(t, "11% are free: the one goes that was never used", m.said(), "remove image c")
		m.set(func() { m.disk = 6200; m.images["d"] = docker.ImageUse{ID: "d", Size: 900, Used: true} })
		time.Sleep(5 * time.Minute)
		expect(t, "nothing that can go is enough", m.said(), "remove image b",
			"event FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem (97% of 10000 bytes used). Failed to free sufficient space by "+
				"deleting unused images (freed 1000 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
			"event ImageGCFailed: Insufficient free disk space on the node's image filesystem (97% of 10000 bytes used). Failed to free sufficient space by "+
				"deleting unused images (freed 1000 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.")
		m.set(func() { m.disk = 20_000; m.images["d"] = docker.ImageUse{ID: "d", Size: 900} })
		time.Sleep(time.Hour)
		expect(t, "not yet an hour after its last use was seen", m.said())
		time.Sleep(10 * time.Minute)
		expect(t, "an hour", m.said(), "remove image d")
	})
}

func TestImagePolicy(t *testing.T) {
	for want, p := range map[string]ImagePolicy{
		"": {High: 85, Low: 80, MinAge: time.Minute, MaxAge: time.Hour},
		"--image-gc-high-threshold=101: want a percentage from 0 to 100":                                              {High: 101},
		"--image-gc-low-threshold=85: want a percentage below --image-gc-high-threshold=85":                           {High: 85, Low: 85},
		"--minimum-image-ttl-duration=-1s: want 0 or more":                                                            {High: 85, MinAge: -time.Second},
		"--maximum-image-ttl-duration=1m0s: want more than --minimum-image-ttl-duration=2m0s, or 0 for no such limit": {High: 85, MinAge: 2 * time.Minute, MaxAge: time.Minute},
	} {
		got := ""
		if err := p.Check(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%+v: got %q, want %q", p, got, want)
		}
	}
	if got := (ImagePolicy{High: 85, Low: 80}).excess(host.Disk{Capacity: 1000, Available: 150}); got != 50 {
		t.Errorf("at 85%%: %d bytes too many, want 50", got)
	}
	if got := (ImagePolicy{High: 85, Low: 80}).excess(host.Disk{Capacity: 1000, Available: 160}); got != 0 {
		t.Errorf("at 84%%: %d bytes too many", got)
	}
}
