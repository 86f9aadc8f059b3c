package stats

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// machine returns a root directory with the kernel's files for one container, pid 7.
func machine(t testing.TB, v2 bool) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"proc/self/net/dev":   "Inter-|   Receive\n face |bytes\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth1: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n  eth0: 3 1 4 0 0 0 0 0 5 1 6 0 0 0 0 0\nveth12: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n",
		"proc/self/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth1\t0000000A\t0\t1\t0\t0\t0\t000000FF\neth0\t00000000\t01\t3\t0\t0\t0\t00000000\n",
		"proc/7/net/dev":      "  eth0: 30 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0\n",
	}
	if v2 {
		files["proc/self/mountinfo"] = "31 23 0:28 / " + root + "/cg rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
		files["proc/7/cgroup"] = "0::/pods/podu1/a\n"
		files["cg/pods/podu1/a/cpu.stat"] = "usage_usec 2500000\nuser_usec 1\n"
		files["cg/pods/podu1/a/cpu.pressure"] = "some avg10=1.50 avg60=0.25 avg300=0.00 total=99\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
		files["cg/pods/podu1/a/memory.current"] = "1000\n"
		files["cg/pods/podu1/a/memory.stat"] = "anon 400\ninactive_file 300\npgfault 11\npgmajfault 2\n"
		files["cg/pods/podu1/a/memory.max"] = "2000\n"
		files["cg/pods/podu1/a/memory.swap.current"] = "5\n"
		files["cg/pods/podu1/a/memory.swap.max"] = "max\n"
		files["cg/pods/podu1/a/pids.current"] = "3\n"
	} else {
		files["proc/self/mountinfo"] = fmt.Sprintf("1 0 0:1 / %[1]s/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n2 0 0:2 /outer %[1]s/cg/memory rw - cgroup cgroup rw,memory\n3 0 0:3 / %[1]s/cg/unified rw - cgroup2 cgroup2 rw\n", root)
		files["proc/7/cgroup"] = "5:name=systemd:/x\n4:memory:/outer/pods/podu1/a\n2:cpu,cpuacct:/pods/podu1/a\n0::/pods/podu1/a\n"
		files["cg/cpu/pods/podu1/a/cpuacct.usage"] = "2500000000\n"
		files["cg/memory/pods/podu1/a/memory.usage_in_bytes"] = "1000\n"
		files["cg/memory/pods/podu1/a/memory.limit_in_bytes"] = "2000\n"
		files["cg/memory/pods/podu1/a/memory.stat"] = "cache 1\ntotal_inactive_file 300\ntotal_rss 400\ntotal_pgfault 11\ntotal_pgmajfault 2\ntotal_swap 5\nhierarchical_memory_limit 2000\nhierarchical_memsw_limit 2500\n"
	}
	// The pod's usage includes the infra container's.
	more := map[string]string{}
	for name, text := range files {
		if above := strings.Replace(name, "podu1/a/", "podu1/", 1); above != name {
			text = strings.NewReplacer("2500000", "2600000", "1000\n", "1500\n", "2000\n", "4000\n").Replace(text)
			more[above], more[strings.Replace(above, "podu1/", "", 1)] = text, text
		}
	}
	maps.Copy(files, more)
	files["proc/pressure/cpu"] = "some avg10=2.00 avg60=1.00 avg300=0.50 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	files[fmt.Sprintf("proc/%d/cgroup", os.Getpid())] = "0::/\n"
	files[fmt.Sprintf("proc/%d/stat", os.Getpid())] = "1 (a) b) S 1 1 1 0 -1 4194560 25 0 3 0 150 50 0 0 20 0 9 0 100 1000000 20 18446744073709551615\n"
	files["proc/8/cgroup"] = files["proc/7/cgroup"] // an engine in its own cgroup
	files["layer/etc/x"] = "four"
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// rig is a Collector of a node with one pod, and the calls to its parts. Its functions can be replaced.
type rig struct {
	*Collector
	testing.TB
	root         string // of the machine's files
	clock        *clocktesting.FakePassiveClock
	start        time.Time
	loads, walks int
	cpu          time.Duration

	views     func() []pod.View
	disk      func(ctx context.Context, terms disk.Terms, path string) disk.Figure
	podDisks  func(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod
	usage     func(id string) (docker.Usage, error)
	container func(id string) (hcs.Statistics, error)
	adapters  func() ([]host.Adapter, error)
}

func (r *rig) Snapshot() []pod.View { return r.views() }

// machineOf is the rig as Host, Engine and Cgroups.
type machineOf struct{ *rig }

func (m machineOf) Load() (host.Load, error) {
	m.loads++
	return host.Load{CPU: m.cpu, Memory: 500, WorkingSet: 400, Capacity: 900, SwapFree: 9, Tasks: 12, MaxTasks: 99}, nil
}

func (m machineOf) Boot() (time.Time, error)                    { return m.start.Add(-time.Hour), nil }
func (m machineOf) Adapters() ([]host.Adapter, error)           { return m.adapters() }
func (m machineOf) Container(id string) (hcs.Statistics, error) { return m.container(id) }
func (m machineOf) PID() int                                    { return 8 }

func (m machineOf) Usage(_ context.Context, id string) (docker.Usage, error) { return m.usage(id) }

func (m machineOf) Place() cgroup.Place {
	text, err := os.ReadFile(filepath.Join(m.root, "proc/7/cgroup"))
	if err != nil {
		m.Error(err)
	}
	return cgroup.Place(strings.ReplaceAll(string(text), "/pods/podu1/a", "/pods"))
}

// disksOf is the rig as DiskFigures.
type disksOf struct{ *rig }

func (d disksOf) FileSystem(ctx context.Context, terms disk.Terms, path string) disk.Figure {
	return d.disk(ctx, terms, path)
}

func (d disksOf) Pods(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
	return d.podDisks(ctx, terms, whole, volumes)
}

func (disksOf) ImageRoot(context.Context) (string, error) { return "/images", nil }

func newRig(t testing.TB, system, root string) *rig {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := &rig{TB: t, root: root, start: start, clock: clocktesting.NewFakePassiveClock(start), cpu: 10 * time.Second}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: types.UID("u1"), CreationTimestamp: metav1.NewTime(start)}}
	containers := []pod.Container{
		{ID: "c1", Name: "app", State: pod.Running, HostPID: 7, StartedAt: start},
		{ID: "c0", Name: "app", State: pod.Exited},
	}
	views := []pod.View{{Pod: p, Observed: pod.Observed{Containers: containers}}, {Pod: p.DeepCopy()}}
	r.views = func() []pod.View { return views }
	r.disk = func(context.Context, disk.Terms, string) disk.Figure {
		return disk.Figure{At: r.clock.Now(), Disk: host.Disk{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}}
	}
	r.podDisks = r.walk
	r.usage = func(id string) (docker.Usage, error) {
		if id != "c1" {
			return docker.Usage{}, fmt.Errorf("asked for %q", id)
		}
		return docker.Usage{CPU: 2500 * time.Millisecond, Memory: 1000, WorkingSet: 700}, nil
	}
	r.adapters = func() ([]host.Adapter, error) {
		return []host.Adapter{{Name: "Ethernet", Up: true, RxBytes: 3, RxErrors: 4, TxBytes: 5, TxErrors: 6}}, nil
	}
	r.container = func(string) (hcs.Statistics, error) {
		return hcs.Statistics{CPU: 2500 * time.Millisecond, Commit: 1000, PrivateWorkingSet: 700, Endpoints: []hcs.Endpoint{{ID: "E1", RxBytes: 30, TxBytes: 50}}}, nil
	}
	var err error
	r.Collector, err = New(Config{NodeName: "n1", OS: system, Root: "/root", Proc: filepath.Join(root, "proc")},
		Parts{Pods: r, Host: machineOf{r}, Disks: disksOf{r}, Engine: machineOf{r}, Cgroups: machineOf{r}, Clock: r.clock})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// walk measures pods' disk usage.
func (r *rig) walk(_ context.Context, _ disk.Terms, whole, _ []pod.View) map[types.UID]disk.Pod {
	r.walks++
	at, out := r.clock.Now(), map[types.UID]disk.Pod{}
	for _, view := range whole {
		of := disk.Pod{Containers: map[string]disk.Container{}, Volumes: []disk.Volume{
			{Volume: "data", EmptyDir: true, At: at, Disk: host.Disk{Capacity: 100, Available: 60, Used: 8}}, {Volume: "claim", Claim: "pvc", Own: true, At: at}}}
		for _, c := range view.Observed.Containers {
			if c.State == pod.Running {
				of.Containers[c.ID] = disk.Container{Name: c.Name, Log: &disk.Amount{Bytes: 8, Files: 2}}
			}
		}
		out[view.Pod.UID] = of
	}
	return out
}

// TestGolden shows everything that is served, after two collections.
func TestGolden(t *testing.T) {
	for name, test := range map[string]struct {
		os string
		v2 bool
	}{"v1": {"linux", false}, "v2": {"linux", true}, "windows": {"windows", false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, test.os, machine(t, test.v2))
			r.collect(t.Context())
			r.clock.SetTime(r.clock.Now().Add(2 * time.Second))
			r.cpu += 3 * time.Second
			answer := httptest.NewRecorder()
			r.SummaryHandler().ServeHTTP(answer, httptest.NewRequest("GET", "/stats/summary", nil))
			r.ResourceHandler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics/resource", nil))
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, answer.Body.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := answer.Body.String(); got != string(want) {
				t.Errorf("%s: got\n%s", path, got)
			}
		})
	}
}

// TestWritten: everything that has a limit counts as ephemeral storage; unknown figures of a container are unknown, not zero.
func TestWritten(t *testing.T) {
	r := newRig(t, "linux", machine(t, true))
	r.podDisks = func(context.Context, disk.Terms, []pod.View, []pod.View) map[types.UID]disk.Pod {
		return map[types.UID]disk.Pod{"u1": {
			Containers: map[string]disk.Container{
				"c1": {Name: "app", Layer: &disk.Amount{Bytes: 1000, Files: 3}, Volumes: &disk.Amount{Bytes: 200, Files: 2}},
				"i":  {Name: "init", Layer: &disk.Amount{Bytes: 30, Files: 1}},
			},
			Files:   disk.Amount{Bytes: 4, Files: 1},
			Volumes: []disk.Volume{{Volume: "m", EmptyDir: true, Memory: true, Own: true, At: r.clock.Now(), Disk: host.Disk{Used: 1 << 30}}},
		}}
	}
	stats := r.Summary(t.Context(), false).Pods[0]
	got := stats.Containers[0]
	if got.Logs.UsedBytes != nil || *got.Rootfs.UsedBytes != 1000 || *got.Rootfs.InodesUsed != 3 || *stats.EphemeralStorage.UsedBytes != 1234 || *stats.EphemeralStorage.InodesUsed != 7 {
		t.Errorf("logs %v, rootfs %d in %d, pod %d in %d; want nil, 1000 in 3, 1234 in 7", got.Logs.UsedBytes, *got.Rootfs.UsedBytes, *got.Rootfs.InodesUsed,
			*stats.EphemeralStorage.UsedBytes, *stats.EphemeralStorage.InodesUsed)
	}
}

// TestHungVolume: a hanging volume, or file system of the node, delays no answer: the last figures are reported with their times.
func TestHungVolume(t *testing.T) {
	root := machine(t, true)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "linux", root)
		r.parts.Clock = clock.RealClock{}
		frozen := make(chan struct{})
		var hang atomic.Bool
		crew := disk.NewCrew(clock.RealClock{}, 1)
		ask := func(key string, bytes uint64) disk.Ask {
			return disk.Ask{Key: key, Begin: func() disk.Pass {
				return func(func(host.Disk) bool) (host.Disk, bool, error) {
					if hang.Load() && key != "sound" {
						<-frozen
					}
					return host.Disk{Capacity: 100, Used: bytes}, true, nil
				}
			}}
		}
		r.disk = func(ctx context.Context, terms disk.Terms, path string) disk.Figure {
			return crew.Look(ctx, terms, []disk.Ask{ask(path, 40)})[0]
		}
		r.podDisks = func(ctx context.Context, terms disk.Terms, _, _ []pod.View) map[types.UID]disk.Pod {
			f := crew.Look(ctx, terms, []disk.Ask{ask("claim", 7), ask("sound", 8)})
			return map[types.UID]disk.Pod{"u1": {Volumes: []disk.Volume{
				{Volume: "claim", Claim: "pvc", Own: true, Disk: f[0].Disk, At: f[0].At, Late: f[0].Late}, {Volume: "sound", Disk: f[1].Disk, At: f[1].At}}}}
		}
		first := time.Now()
		r.Summary(t.Context(), false)
		hang.Store(true)
		for range 3 {
			time.Sleep(time.Minute)
			asked := time.Now()
			s := r.Summary(t.Context(), false)
			claim, sound := s.Pods[0].VolumeStats[0], s.Pods[0].VolumeStats[1]
			if *claim.UsedBytes != 7 || !claim.Time.Time.Equal(first) || sound.Time.Time.Before(asked) {
				t.Errorf("claim %d of %s, sound one of %s; want 7 of %s and one of %s or later", *claim.UsedBytes, claim.Time, sound.Time, first, asked)
			}
			if fs := s.Node.Fs; fs == nil || *fs.UsedBytes != 40 || !fs.Time.Time.Equal(first) {
				t.Errorf("the node's file system: %+v", fs)
			}
			if took := time.Since(asked); took > 3*patience {
				t.Errorf("the answer took %s", took)
			}
		}
		close(frozen)
	})
}

// TestShared: simultaneous callers share a collection, and nothing is measured again before it is due.
func TestShared(t *testing.T) {
	r := newRig(t, "linux", machine(t, true))
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { r.Summary(context.Background(), false) })
	}
	group.Wait()
	if r.loads != 1 || r.walks != 1 {
		t.Errorf("20 askers: %d collections, %d walks, want 1 each", r.loads, r.walks)
	}
	r.clock.SetTime(r.clock.Now().Add(usageAge))
	r.Summary(t.Context(), false)
	if r.loads != 2 || r.walks != 1 {
		t.Errorf("after %s: %d collections, %d walks, want 2 and 1", usageAge, r.loads, r.walks)
	}
	r.clock.SetTime(r.clock.Now().Add(diskAge))
	if r.Summary(t.Context(), true); r.walks != 1 {
		t.Error("asked for CPU and memory only, and directories were walked")
	}
	if r.Summary(t.Context(), false); r.walks != 2 {
		t.Errorf("after %s: %d walks, want 2", diskAge, r.walks)
	}
}

// TestVanished: a container that ends during its measurement is not an error; one that cannot be measured is.
func TestVanished(t *testing.T) {
	root := machine(t, true)
	r := newRig(t, "linux", root)
	if err := os.Remove(filepath.Join(root, "cg/pods/podu1/a/memory.current")); err != nil {
		t.Fatal(err)
	}
	if u := r.collect(t.Context()); u.failed != 0 || len(u.pods) != 0 {
		t.Errorf("vanished: %d failures and %d pods, want none", u.failed, len(u.pods))
	}
	if err := os.WriteFile(filepath.Join(root, "cg/pods/podu1/a/memory.current"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	answer := httptest.NewRecorder()
	r.ResourceHandler().ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
	if !strings.Contains(answer.Body.String(), "\nresource_scrape_error 1\n") {
		t.Errorf("an unreadable figure is not told:\n%s", answer.Body)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("eth0: 1 2 3 4 5 6 7 8 9 10 11\n1 (a) S 1 1 1 0 -1 4194560 25 0 3 0 150 50 0 0 20 0 9 0 100 1000000 20 1")
	f.Fuzz(func(t *testing.T, text string) {
		parseRoute(text)
		for _, n := range parseNetDev(text) {
			if n.Name == "" {
				t.Error("an interface without a name")
			}
		}
		if s, err := parseProcess(text); err == nil && s.Resident == nil {
			t.Error("a process without memory and no error")
		}
	})
}

// crowd has 100 pods of one container, measured with the kernel's files.
func crowd(b *testing.B) *rig {
	r := newRig(b, "linux", machine(b, true))
	one := r.views()[0]
	r.views = func() (all []pod.View) {
		for i := range 100 {
			p := *one.Pod
			p.Name = fmt.Sprint("p", i)
			all = append(all, pod.View{Pod: &p, Observed: one.Observed})
		}
		return all
	}
	return r
}

func BenchmarkCollect(b *testing.B) {
	r := crowd(b)
	for b.Loop() {
		r.measure(b.Context(), r.clock.Now())
	}
}
