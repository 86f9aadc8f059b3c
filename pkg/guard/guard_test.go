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
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
)

// testPod has containers with these limits of ephemeral storage ("": none) and emptyDirs v0, v1 ... with these sizeLimits.
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

func emptyDir(name string, used uint64) volume.Usage {
	return volume.Usage{Volume: name, EmptyDir: true, Disk: host.Disk{Used: used}}
}

func TestPlan(t *testing.T) {
	const mi = 1 << 20
	memory, claim, config := emptyDir("v0", 9*mi), emptyDir("data", 9*mi), volume.Usage{Volume: "config", Disk: host.Disk{Used: mi}}
	memory.Memory, claim.EmptyDir, claim.Claim = true, false, "data"
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
		volumes    []volume.Usage
		containers map[string]uint64
		want       string
	}{
		{"no limits", testPod("p", []string{""}, []string{""}), []volume.Usage{emptyDir("v0", 99*mi)}, map[string]uint64{"c0": 99 * mi}, ""},
		{"emptyDir at its limit", testPod("p", nil, []string{"1Mi"}), []volume.Usage{emptyDir("v0", mi)}, nil, ""},
		{"emptyDir over its limit", testPod("p", nil, []string{"", "1Mi"}), []volume.Usage{emptyDir("v0", 9*mi), emptyDir("v1", mi+1)}, nil,
			`Usage of EmptyDir volume "v1" exceeds the limit "1Mi". `},
		{"emptyDir in memory", testPod("p", nil, []string{"1Mi"}), []volume.Usage{memory}, nil, ""},
		{"sizeLimit 0", testPod("p", nil, []string{"0"}), []volume.Usage{emptyDir("v0", mi)}, nil, ""},
		{"container", testPod("p", []string{"9Mi", "2Mi"}, nil), nil, map[string]uint64{"c0": mi, "c1": 2*mi + 1},
			`Container c1 exceeded its local ephemeral storage limit "2Mi". `},
		{"container without a limit", testPod("p", []string{"2Mi", ""}, nil), nil, map[string]uint64{"c0": mi, "c1": 2 * mi},
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "},
		{"all together", testPod("p", []string{"2Mi", "2Mi"}, []string{""}), []volume.Usage{emptyDir("v0", mi), config},
			map[string]uint64{"c0": mi, "c1": mi + 1}, "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "},
		{"claims and memory are not ephemeral storage", testPod("p", []string{"2Mi"}, nil), []volume.Usage{memory, claim}, map[string]uint64{"c0": mi}, ""},
		{"an init container allows more", withInit, nil, map[string]uint64{"c0": mi, "i": 3 * mi}, ""},
		{"volume first", testPod("p", []string{"1Mi"}, []string{"1Mi"}), []volume.Usage{emptyDir("v0", 2*mi)}, map[string]uint64{"c0": 2 * mi},
			`Usage of EmptyDir volume "v0" exceeds the limit "1Mi". `},
		{"static", static, []volume.Usage{emptyDir("v0", 2*mi)}, nil, ""},
		{"critical", critical, []volume.Usage{emptyDir("v0", 2*mi)}, nil, ""},
	} {
		evictions := Plan([]Usage{{Pod: test.pod, Limits: LimitsOf(test.pod), Volumes: test.volumes, Containers: test.containers}})
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

// TestRun holds that only pods with limits are measured, each container in its newest attempt, and that looking takes its time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of what follows: the clock alone does not order the test and the guard for the race detector
		var asked []string
		cost := time.Duration(0)
		containers := []pod.Container{{ID: "new", Name: "c0"}, {ID: "old", Name: "c0"}, {ID: "bad", Name: "c1"}}
		views := []pod.View{
			{Pod: testPod("free", []string{""}, []string{""}), Observed: pod.Observed{Containers: containers}},
			{Pod: testPod("limited", []string{"5Mi", "5Mi"}, nil), Observed: pod.Observed{Containers: containers}},
			{Pod: testPod("volume", []string{""}, []string{"1Mi"}), Observed: pod.Observed{Containers: containers}},
			{Pod: testPod("ending", nil, []string{"1Mi"}), Phase: pod.Terminating},
		}
		var evicted []string
		g := New(Config{Images: ImagePolicy{High: 100}}, Parts{
			Pods: func() []pod.View {
				mu.Lock()
				defer mu.Unlock()
				return views
			},
			Volumes: func(p *v1.Pod) ([]volume.Usage, error) {
				mu.Lock()
				asked = append(asked, "volumes of "+p.Name)
				took := cost
				mu.Unlock()
				time.Sleep(took)
				return []volume.Usage{emptyDir("v0", 2<<20)}, errors.New("another volume cannot be measured")
			},
			Container: func(_ context.Context, id string) (docker.DiskUsage, error) {
				mu.Lock()
				asked = append(asked, id)
				mu.Unlock()
				if id == "bad" {
					return docker.DiskUsage{}, errors.New("gone")
				}
				return docker.DiskUsage{Logs: 1, Writable: 2}, nil
			},
			Evict: func(uid types.UID, e pod.Eviction) {
				mu.Lock()
				defer mu.Unlock()
				evicted = append(evicted, fmt.Sprintf("%s: %s%s", uid, e.Message, e.Grace))
			},
			Files: func(types.UID) uint64 { return 3 },
			Clock: clock.RealClock{},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(period + time.Second)
		synctest.Wait()
		mu.Lock()
		if want := []string{"volumes of limited", "new", "bad", "volumes of volume"}; !slices.Equal(asked, want) {
			t.Errorf("asked %q, want %q", asked, want)
		}
		if got, want := strings.Join(evicted, "; "), `volume: Usage of EmptyDir volume "v0" exceeds the limit "1Mi". 1s`; got != want {
			t.Errorf("evicted %s, want %s", got, want)
		}
		// From here on a look takes two minutes: the next one begins forty minutes after its end.
		cost, asked, views = 2*time.Minute, nil, views[2:3]
		mu.Unlock()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if len(asked) != 1 {
			t.Errorf("asked %q, want one look", asked)
		}
		mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFilesCount: a pod that fills its hosts file is held to its limit too (CVE-2020-8557).
func TestFilesCount(t *testing.T) {
	p := testPod("p", []string{"1Mi"}, nil)
	u := Usage{Pod: p, Limits: LimitsOf(p), Files: 1 << 20}
	if out := Plan([]Usage{u}); len(out) != 0 {
		t.Errorf("at its limit: %v", out)
	}
	u.Files++
	if out := Plan([]Usage{u}); len(out) != 1 {
		t.Error("over its limit by its hosts file, and not evicted")
	}
}
