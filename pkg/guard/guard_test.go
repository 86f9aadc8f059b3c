package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

// testPod returns a pod with containers that have these limits of ephemeral storage ("": none) and emptyDirs v0, v1 ...
// with these sizeLimits.
func testPod(name string, containers, volumes []string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for i, limit := range containers {
		c := v1.Container{Name: fmt.Sprintf("c%d", i)}
		if limit != "" {
			c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	for i, limit := range volumes {
		source := &v1.EmptyDirVolumeSource{}
		if limit != "" {
			q := resource.MustParse(limit)
			source.SizeLimit = &q
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: v1.VolumeSource{EmptyDir: source}})
	}
	return p
}

func emptyDir(name string, used uint64) disk.Volume {
	return disk.Volume{Volume: name, EmptyDir: true, Disk: host.Disk{Used: used}}
}

// logs returns containers by name that have written so many bytes of logs.
func logs(byName map[string]uint64) map[string]disk.Container {
	out := map[string]disk.Container{}
	for name, bytes := range byName {
		out["id of "+name] = disk.Container{Name: name, Log: &disk.Amount{Bytes: bytes}}
	}
	return out
}

func TestPlan(t *testing.T) {
	const mi = 1 << 20
	memory, claim, config := emptyDir("v0", 9*mi), emptyDir("data", 9*mi), disk.Volume{Volume: "config", Disk: host.Disk{Used: mi}}
	memory.Memory, memory.Own, claim.EmptyDir, claim.Claim, claim.Own = true, true, false, "data", true
	static := testPod("static", nil, []string{"1Mi"})
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	critical := testPod("critical", nil, []string{"1Mi"})
	critical.Spec.Priority = new(int32(2_000_001_000))
	withInit := testPod("init", []string{"2Mi"}, nil)
	withInit.Spec.InitContainers = []v1.Container{{Name: "i", Resources: v1.ResourceRequirements{
		Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("5Mi")}}}}
	for _, test := range []struct {
		name       string
		pod        *v1.Pod
		volumes    []disk.Volume
		containers map[string]uint64
		want       string
	}{
		{"no limits", testPod("p", []string{""}, []string{""}), []disk.Volume{emptyDir("v0", 99*mi)}, map[string]uint64{"c0": 99 * mi}, ""},
		{"emptyDir at its limit", testPod("p", nil, []string{"1Mi"}), []disk.Volume{emptyDir("v0", mi)}, nil, ""},
		{"emptyDir over its limit", testPod("p", nil, []string{"", "1Mi"}), []disk.Volume{emptyDir("v0", 9*mi), emptyDir("v1", mi+1)}, nil,
			`Usage of EmptyDir volume "v1" exceeds the limit "1Mi". `},
		{"emptyDir in memory", testPod("p", nil, []string{"1Mi"}), []disk.Volume{memory}, nil, ""},
		{"sizeLimit 0", testPod("p", nil, []string{"0"}), []disk.Volume{emptyDir("v0", mi)}, nil, ""},
		{"container", testPod("p", []string{"9Mi", "2Mi"}, nil), nil, map[string]uint64{"c0": mi, "c1": 2*mi + 1},
			`Container c1 exceeded its local ephemeral storage limit "2Mi". `},
		{"container without a limit", testPod("p", []string{"2Mi", ""}, nil), nil, map[string]uint64{"c0": mi, "c1": 2 * mi},
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "},
		{"all together", testPod("p", []string{"2Mi", "2Mi"}, []string{""}), []disk.Volume{emptyDir("v0", mi), config},
			map[string]uint64{"c0": mi, "c1": mi + 1}, "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "},
		{"claims and memory are not ephemeral storage", testPod("p", []string{"2Mi"}, nil), []disk.Volume{memory, claim}, map[string]uint64{"c0": mi}, ""},
		{"an init container allows more", withInit, nil, map[string]uint64{"c0": mi, "i": 3 * mi}, ""},
		{"volume first", testPod("p", []string{"1Mi"}, []string{"1Mi"}), []disk.Volume{emptyDir("v0", 2*mi)}, map[string]uint64{"c0": 2 * mi},
			`Usage of EmptyDir volume "v0" exceeds the limit "1Mi". `},
		{"static", static, []disk.Volume{emptyDir("v0", 2*mi)}, nil, ""},
		{"critical", critical, []disk.Volume{emptyDir("v0", 2*mi)}, nil, ""},
	} {
		evictions := Plan([]Usage{{Pod: test.pod, Limits: LimitsOf(test.pod), Taken: disk.Pod{Volumes: test.volumes, Containers: logs(test.containers)}}})
		got := ""
		for _, e := range evictions {
			got += e.Message
			signal := map[bool]string{true: "emptydirfs.limit"}[strings.HasPrefix(e.Message, "Usage")] + map[bool]string{true: "ephemeralpodfs.limit"}[strings.HasPrefix(e.Message, "Pod")] +
				map[bool]string{true: "ephemeralcontainerfs.limit"}[strings.HasPrefix(e.Message, "Container")]
			if e.Signal != signal {
				t.Errorf("%s: counted as %q, want %q", test.name, e.Signal, signal)
			}
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// bench is a guard of some pods, with a record of its actions.
type bench struct {
	mu                sync.Mutex // the clock alone does not order the test and the guard for the race detector
	views             []pod.View
	asked, evicted    []string
	told              []string
	disk              func(terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod
	engine            error  // why the engine does not respond
	available, memory uint64 // on the node
}

func (b *bench) Snapshot() []pod.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.views
}

func (b *bench) Evict(uid types.UID, e pod.Eviction) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.evicted = append(b.evicted, fmt.Sprintf("%s: %s%s", uid, e.Message, e.Grace))
	b.views = slices.DeleteFunc(slices.Clone(b.views), func(v pod.View) bool { return v.Pod.UID == uid })
}

func (b *bench) Vacated(types.UID) <-chan struct{} { return closed }

func (b *bench) RemoveLeftovers() {}

func (b *bench) Node(context.Context) *summary.NodeStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &summary.NodeStats{
		Memory: &summary.MemoryStats{AvailableBytes: new(b.memory), WorkingSetBytes: new(uint64(1000))},
		Fs:     &summary.FsStats{AvailableBytes: new(b.available), CapacityBytes: new(uint64(1000))},
	}
}

func (b *bench) Summary(context.Context, bool) *summary.Summary { return &summary.Summary{} }

func (b *bench) NodeEvent(string, string, string) {}

func (b *bench) PodEvent(_, name, _, kind, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = append(b.told, fmt.Sprintf("%s %s %s: %s", name, kind, reason, message))
}

// benchDisks are the disks of a bench.
type benchDisks struct{ *bench }

func (b benchDisks) Pods(_ context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
	b.mu.Lock()
	for _, v := range whole {
		b.asked = append(b.asked, v.Pod.Name)
	}
	for _, v := range volumes {
		b.asked = append(b.asked, "volumes of "+v.Pod.Name)
	}
	b.mu.Unlock()
	return b.disk(terms, whole, volumes)
}

func (b benchDisks) ImageDisk(context.Context) (host.Disk, error) { return host.Disk{}, b.engine }

func (b benchDisks) ImagesApart(context.Context) (bool, error) { return true, b.engine }

// uncounted counts nothing.
type uncounted struct{}

func (uncounted) Evicted(string, time.Duration) {}
func (uncounted) ImageRemoved(string)           {}

func (b *bench) guard(t *testing.T, thresholds Settings) *Guard {
	t.Helper()
	all, err := Thresholds(thresholds)
	if err != nil {
		t.Fatal(err)
	}
	g := New(Config{Thresholds: all, Images: ImagePolicy{High: 100}},
		Parts{Pressure: &Pressure{}, Pods: b, Disks: benchDisks{b}, Figures: b, Counts: uncounted{}, Events: b, Node: wake.New(), Clock: clock.RealClock{}})
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

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (b *bench) since() (asked, evicted, told string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	asked, evicted, told = strings.Join(b.asked, "; "), strings.Join(b.evicted, "; "), strings.Join(b.told, "; ")
	b.asked, b.evicted, b.told = nil, nil, nil
	return asked, evicted, told
}

// TestRun: only pods with limits are measured, and only the volumes of those without other limits.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{views: []pod.View{
			{Pod: testPod("free", []string{""}, []string{""})},
			{Pod: testPod("limited", []string{"5Mi", "5Mi"}, nil)},
			{Pod: testPod("volume", []string{""}, []string{"1Mi"})},
			{Pod: testPod("ending", nil, []string{"1Mi"}), Phase: pod.Terminating},
		}, disk: func(_ disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
			out := map[types.UID]disk.Pod{}
			for _, v := range slices.Concat(whole, volumes) {
				out[v.Pod.UID] = disk.Pod{Volumes: []disk.Volume{emptyDir("v0", 2<<20)}}
			}
			return out
		}}
		b.guard(t, Settings{})
		time.Sleep(period + time.Second)
		asked, evicted, told := b.since()
		if want := "limited; volumes of volume"; asked != want {
			t.Errorf("asked %q, want %q", asked, want)
		}
		if want := `volume: Usage of EmptyDir volume "v0" exceeds the limit "1Mi". 1s`; evicted != want || told != "" {
			t.Errorf("evicted %s, told %s; want %s", evicted, told, want)
		}
		time.Sleep(period)
		if asked, _, _ := b.since(); asked != "limited" {
			t.Errorf("asked %q", asked)
		}
	})
}

// TestStalled: while measuring limited pods hangs, the node's pressure is found and relieved, and no second measurement
// starts.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := &bench{memory: 1000, available: 1000, engine: errors.New("it hangs"), views: []pod.View{
			{Pod: testPod("limited", []string{"5Mi"}, nil)}, {Pod: testPod("free", nil, nil)}}}
		b.disk = func(disk.Terms, []pod.View, []pod.View) map[types.UID]disk.Pod {
			<-release
			return map[types.UID]disk.Pod{"limited": {Files: disk.Amount{Bytes: 6 << 20}}}
		}
		g := b.guard(t, Settings{Hard: map[string]string{"memory.available": "100"}})
		time.Sleep(3 * period)
		if asked, _, _ := b.since(); asked != "limited" {
			t.Errorf("asked %q", asked)
		}
		b.mu.Lock()
		b.memory = 50
		b.views[1].Pod.Spec.Priority = new(int32(-1))
		b.mu.Unlock()
		time.Sleep(period)
		synctest.Wait()
		if _, evicted, _ := b.since(); !strings.HasPrefix(evicted, "free: The node was low on resource: memory.") || !slices.Contains(g.parts.Pressure.Conditions(), v1.NodeMemoryPressure) {
			t.Errorf("evicted %q, conditions %v", evicted, g.parts.Pressure.Conditions())
		}
		b.mu.Lock()
		b.memory = 1000
		b.mu.Unlock()
		time.Sleep(period)
		b.since()
		close(release)
		if _, evicted, _ := b.since(); evicted != "limited: Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. 1s" {
			t.Errorf("when it has been measured: evicted %q", evicted)
		}
	})
}

// TestSlow: a pod that cannot be measured in time is reported, but not too often, and counts with its last figures; the
// others' limits still apply.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{views: []pod.View{{Pod: testPod("huge", []string{"5Mi"}, []string{""})}, {Pod: testPod("other", nil, []string{"1Mi"})}}}
		var counted uint64 = 3 << 20
		b.disk = func(terms disk.Terms, _, _ []pod.View) map[types.UID]disk.Pod {
			time.Sleep(terms.Patience)
			b.mu.Lock()
			defer b.mu.Unlock()
			of := disk.Amount{Bytes: counted, Files: 5}
			return map[types.UID]disk.Pod{
				"huge":  {Volumes: []disk.Volume{emptyDir("v0", counted)}, Late: []disk.Late{{What: `volume "v0"`, Of: of}}},
				"other": {Volumes: []disk.Volume{emptyDir("v0", 2<<20)}},
			}
		}
		b.guard(t, Settings{})
		time.Sleep(period + patience)
		_, evicted, told := b.since()
		if want := `other: Usage of EmptyDir volume "v0" exceeds the limit "1Mi". 1s`; evicted != want {
			t.Errorf("evicted %s, want %s", evicted, want)
		}
		if want := `huge Warning VolumeMeasureSlow: Not measured within 10s: volume "v0" counts as 3145728 bytes in 5 files (no earlier figure). `; !strings.HasPrefix(told, want) {
			t.Errorf("told %s, want %s", told, want)
		}
		time.Sleep(silence / 2)
		if _, evicted, told := b.since(); told != "" || evicted != "" {
			t.Errorf("then told %q, evicted %q", told, evicted)
		}
		b.mu.Lock()
		counted = 6 << 20
		b.mu.Unlock()
		time.Sleep(2*period + patience)
		if _, evicted, _ := b.since(); !strings.HasPrefix(evicted, "huge: Pod ephemeral local storage usage exceeds") {
			t.Errorf("when what was counted so far is over the limit: evicted %q", evicted)
		}
	})
}

// TestSlowSays: the Event tells a tree with many files from a file system that does not answer, and says which limits depend on it.
func TestSlowSays(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tree := disk.Late{What: `volume "cache"`, Of: disk.Amount{Bytes: 5, Files: 2}, At: at}
	claim := disk.Late{What: `volume "data"`, Of: disk.Amount{Bytes: 7, Files: 1}, Claim: true}
	server := disk.Late{What: `volume "nfs"`, Claim: true, System: true}
	const (
		limits = "Limits are checked against the larger of the last complete figure and the count so far; use fewer files, or a volume on a separate file system that responds"
		counts = `volume "cache" counts as 5 bytes in 2 files (last complete figure of 2026-01-02T03:04:05Z)`
		silent = `The file system did not answer within 10s: volume "nfs" (no earlier figure). The last figure stays; check the server or the disk behind the file system`
	)
	for _, test := range []struct {
		late []disk.Late
		want string
	}{
		{[]disk.Late{tree}, "Not measured within 10s: " + counts + ". " + limits},
		{[]disk.Late{claim}, `Not measured within 10s: volume "data" counts as 7 bytes in 1 files (no earlier figure). No limit covers it; use fewer files`},
		{[]disk.Late{server}, silent},
		{[]disk.Late{server, tree}, "Not measured within 10s: " + counts + ". " + limits + ". " + silent},
	} {
		if got := slow(test.late); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// TestOverFirst: when the disk is short, pods that exceed their own limits are evicted before others.
func TestOverFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{memory: 1000, available: 50, views: []pod.View{{Pod: testPod("large", nil, nil)}, {Pod: testPod("over", []string{"1Mi"}, nil)}}}
		b.disk = func(_ disk.Terms, _, _ []pod.View) map[types.UID]disk.Pod {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.available = 1000 // after the first has ended
			return map[types.UID]disk.Pod{"large": {Files: disk.Amount{Bytes: 9 << 20}}, "over": {Files: disk.Amount{Bytes: 2 << 20}}}
		}
		b.guard(t, Settings{Hard: map[string]string{"nodefs.available": "100"}})
		time.Sleep(time.Second)
		if _, evicted, _ := b.since(); evicted != "over: Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. 1s" {
			t.Errorf("evicted %q", evicted)
		}
	})
}

// TestFilesCount: the limit of a pod includes its hosts file (CVE-2020-8557).
func TestFilesCount(t *testing.T) {
	p := testPod("p", []string{"1Mi"}, nil)
	u := Usage{Pod: p, Limits: LimitsOf(p), Taken: disk.Pod{Files: disk.Amount{Bytes: 1 << 20}}}
	if out := Plan([]Usage{u}); len(out) != 0 {
		t.Errorf("at its limit: %v", out)
	}
	u.Taken.Files.Bytes++
	if out := Plan([]Usage{u}); len(out) != 1 {
		t.Error("over its limit by its hosts file, and not evicted")
	}
}
