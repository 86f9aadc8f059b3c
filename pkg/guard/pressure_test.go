package guard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/host"
)

func TestThresholds(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings Settings
		want     string // signals with the minimum of 1000 and what is reclaimed, or the error
	}{
		{"none", Settings{}, ""},
		{"both kinds, by the order of signals", Settings{
			Hard: map[string]string{"pid.available": "10%", "memory.available": "100", "nodefs.available": "0%", "imagefs.available": "100%"},
			Soft: map[string]string{"memory.available": "20%"}, SoftGrace: map[string]string{"memory.available": "90s"},
			MinimumReclaim: map[string]string{"memory.available": "5%"},
		}, "memory.available 100+50 0s; memory.available 200+50 1m30s; pid.available 100+0 0s"},
		{"allocatable too", Settings{Hard: map[string]string{"memory.available": "100Mi"}, Allocatable: true},
			"memory.available 104857600+0 0s; allocatableMemory.available 104857600+0 0s"},
		{"unknown", Settings{Hard: map[string]string{"memory.free": "1"}}, "--eviction-hard: memory.free=1: want a signal, one of memory.available, "},
		{"negative", Settings{Hard: map[string]string{"memory.available": "-1"}}, "--eviction-hard: memory.available=-1: want a quantity above 0 such as 100Mi"},
		{"too much", Settings{Soft: map[string]string{"memory.available": "101%"}}, "--eviction-soft: memory.available=101%: want a percentage from 0% to 100%"},
		{"no number", Settings{Hard: map[string]string{"memory.available": "NaN%"}}, "--eviction-hard: memory.available=NaN%: want a percentage"},
		{"no grace", Settings{Soft: map[string]string{"memory.available": "1Gi"}}, "--eviction-soft: memory.available=1Gi: want --eviction-soft-grace-period for it"},
		{"bad grace", Settings{SoftGrace: map[string]string{"memory.available": "soon"}}, "--eviction-soft-grace-period: memory.available=soon: want a signal and a duration"},
		{"bad reclaim", Settings{MinimumReclaim: map[string]string{"memory.available": "x"}}, "--eviction-minimum-reclaim: memory.available=x: want a quantity"},
	} {
		all, err := Thresholds(test.settings)
		var parts []string
		for _, x := range all {
			parts = append(parts, fmt.Sprintf("%s %d+%d %s", x.Signal, x.Value.of(1000), x.Reclaim.of(1000), x.Grace))
		}
		got := strings.Join(parts, "; ")
		if err != nil {
			got = err.Error()
		}
		if got != test.want && (err == nil || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestObserve(t *testing.T) {
	fs := func(n uint64) *summary.FsStats {
		return &summary.FsStats{AvailableBytes: &n, CapacityBytes: new(n * 2), InodesFree: new(n + 1), Inodes: new(n * 3)}
	}
	node := &summary.NodeStats{
		Memory: &summary.MemoryStats{AvailableBytes: new(uint64(600)), WorkingSetBytes: new(uint64(400))},
		SystemContainers: []summary.ContainerStats{
			{Name: "kubelet", Memory: &summary.MemoryStats{AvailableBytes: new(uint64(1)), WorkingSetBytes: new(uint64(1))}},
			{Name: "pods", Memory: &summary.MemoryStats{AvailableBytes: new(uint64(50)), WorkingSetBytes: new(uint64(150))}},
		},
		Fs: fs(10), Runtime: &summary.RuntimeStats{ImageFs: fs(20)},
		Rlimit: &summary.RlimitStats{MaxPID: new(int64(900)), NumOfRunningProcesses: new(int64(100))},
	}
	show := func(o Observations) string {
		var out []string
		for i := range signals {
			if seen, ok := o[signals[i].Signal]; ok {
				out = append(out, fmt.Sprintf("%s %d/%d", signals[i].Signal, seen.Available, seen.Capacity))
			}
		}
		return strings.Join(out, "; ")
	}
	if got, want := show(Observe(node)), "memory.available 600/1000; allocatableMemory.available 50/200; nodefs.available 10/20; nodefs.inodesFree 11/30; "+
		"imagefs.available 20/40; imagefs.inodesFree 21/60; pid.available 800/900"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Windows promises memory: what counts is how much more it can promise.
	node.SystemContainers = []summary.ContainerStats{{Name: "windows-global-commit-memory",
		Memory: &summary.MemoryStats{AvailableBytes: new(uint64(70)), UsageBytes: new(uint64(30))}}}
	node.Fs, node.Runtime, node.Rlimit = nil, nil, nil
	if got, want := show(Observe(node)), "memory.available 70/100"; got != want {
		t.Errorf("Windows: got %s, want %s", got, want)
	}
}

// TestLook checks thresholds over time.
func TestLook(t *testing.T) {
	all, err := Thresholds(Settings{
		Hard: map[string]string{"memory.available": "100", "nodefs.available": "10%"},
		Soft: map[string]string{"memory.available": "200"}, SoftGrace: map[string]string{"memory.available": "30s"},
		MinimumReclaim: map[string]string{"nodefs.available": "50"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const transition = time.Minute
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var s state
	for _, step := range []struct {
		at           time.Duration
		memory, disk int64 // of 1000; -1: not measured
		want         string
	}{
		{0, 500, 500, ""},
		{10, 150, 500, "MemoryPressure"},                   // soft, its grace period has begun
		{20, 300, 500, "MemoryPressure"},                   // above, but only just
		{30, 150, 500, "MemoryPressure"},                   // its grace period restarts
		{50, 150, 500, "MemoryPressure"},                   //
		{60, 150, 500, "MemoryPressure: memory.available"}, // 30 s
		{70, 50, 90, "DiskPressure MemoryPressure: memory.available memory.available nodefs.available"}, // hard ones are due immediately
		{80, 500, 140, "DiskPressure MemoryPressure: nodefs.available"},                                 // more than the threshold, less than wanted
		{90, 500, -1, "DiskPressure MemoryPressure"},                                                    // nothing is done about an unknown signal
		{100, 500, 150, "DiskPressure MemoryPressure"},                                                  // resolved
		{129, 500, 150, "DiskPressure MemoryPressure"},                                                  //
		{130, 500, 150, "DiskPressure"},                                                                 // a minute after 70
		{140, 500, 150, ""},                                                                             // and after 80
		{150, 500, 140, ""},                                                                             // resolved, so it returns only below the threshold
	} {
		o := Observations{}
		if step.memory >= 0 {
			o[MemoryAvailable] = Observation{step.memory, 1000}
		}
		if step.disk >= 0 {
			o[NodeFSAvailable] = Observation{step.disk, 1000}
		}
		var conditions []v1.NodeConditionType
		s, conditions = s.look(all, o, transition, start.Add(step.at*time.Second))
		var words []string
		for _, c := range conditions {
			words = append(words, string(c))
		}
		got := strings.Join(words, " ")
		if len(s.due) > 0 {
			got += ":"
		}
		for _, x := range s.due {
			got += " " + string(x.Signal)
		}
		if got != step.want {
			t.Errorf("after %d s: got %q, want %q", step.at, got, step.want)
		}
	}
	if _, conditions := (state{}).look(all, Observations{MemoryAvailable: {1, 1000}}, 0, start); !slices.Equal(conditions, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
		t.Errorf("without a transition period: %v", conditions)
	}
}

// user returns a pod with a request and its usage; its container c0 has written half of bytes, the other half is in
// volume v0.
func user(name string, priority int32, request string, memory, bytes, tasks uint64) candidate {
	p := testPod(name, []string{""}, []string{""})
	p.Namespace, p.Spec.Priority = "ns", &priority
	if request != "" {
		q := resource.MustParse(request)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: q, v1.ResourceEphemeralStorage: q}
	}
	half := bytes / 2
	return candidate{p, &summary.PodStats{
		Memory: &summary.MemoryStats{WorkingSetBytes: &memory}, ProcessStats: &summary.ProcessStats{ProcessCount: &tasks},
		Containers: []summary.ContainerStats{{Name: "c0", Memory: &summary.MemoryStats{WorkingSetBytes: &memory}}},
	}, &disk.Pod{
		Containers: map[string]disk.Container{"id": {Name: "c0", Layer: &disk.Amount{Bytes: half, Files: tasks}, Log: &disk.Amount{}}},
		Volumes:    []disk.Volume{emptyDir("v0", half), {Volume: "claim", Claim: "claim", Own: true, Disk: host.Disk{Used: 1 << 40}}},
	}}
}

// TestRankCounts: every place that a pod can fill counts for its rank, as it does for its limit.
func TestRankCounts(t *testing.T) {
	innocent := user("innocent", 0, "", 0, 1000, 1)
	for name, of := range map[string]disk.Pod{
		"termination log":     {Files: disk.Amount{Bytes: 5000}},
		"volume of its image": {Containers: map[string]disk.Container{"a": {Name: "c0", Volumes: &disk.Amount{Bytes: 5000}}}},
		"root file system":    {Containers: map[string]disk.Container{"a": {Name: "c0", Layer: &disk.Amount{Bytes: 5000}}}},
		"log":                 {Containers: map[string]disk.Container{"a": {Name: "c0", Log: &disk.Amount{Bytes: 5000}}}},
		"emptyDir":            {Volumes: []disk.Volume{emptyDir("v0", 5000)}},
		"not known":           {Late: []disk.Late{{What: `volume "v0"`}}},
	} {
		hog := candidate{pod: testPod("hog", []string{"4000"}, nil), disk: &of}
		if c, _ := choose([]candidate{innocent, hog}, Threshold{Signal: NodeFSAvailable}, false); c.pod.Name != "hog" {
			t.Errorf("%s: %s has to go", name, c.pod.Name)
		}
		if name == "not known" {
			continue
		}
		if out := Plan([]Usage{{Pod: hog.pod, Limits: LimitsOf(hog.pod), Taken: of}}); len(out) != 1 {
			t.Errorf("%s: over its limit, and not evicted", name)
		}
	}
	frozen := candidate{pod: testPod("frozen", nil, nil), disk: &disk.Pod{Late: []disk.Late{{What: `volume "claim"`, Claim: true}}}}
	if c, _ := choose([]candidate{innocent, frozen}, Threshold{Signal: NodeFSAvailable}, false); c.pod.Name != "innocent" {
		t.Error("a pod has to go because a claim of it hangs, which is not on the node's disk")
	}
}

func TestRank(t *testing.T) {
	candidates := []candidate{
		user("within", 0, "1Ki", 1000, 1000, 5),
		user("over", 0, "1Ki", 1100, 1100, 4),
		user("far", 0, "1Ki", 3000, 3000, 3),
		user("dear", 10, "1Ki", 9000, 9000, 9),
		user("greedy", 0, "", 2500, 2500, 8),
	}
	unknown := candidate{pod: testPod("unknown", nil, nil)}
	unknown.pod.Namespace = "ns"
	for _, test := range []struct {
		name      string
		signal    Signal
		dedicated bool
		all       []candidate
		want      string
	}{
		{"memory", MemoryAvailable, false, candidates, "greedy far over dear within"},
		{"disk, all of it", NodeFSAvailable, false, candidates, "greedy far over dear within"},
		{"disk, volumes alone", NodeFSAvailable, true, candidates, "greedy far dear over within"},
		{"disk, containers alone", ImageFSAvailable, true, candidates, "greedy far dear over within"},
		{"inodes", NodeFSInodes, false, candidates, "greedy within over far dear"},
		{"processes", PIDAvailable, false, candidates, "greedy within over far dear"},
		{"unknown first", AllocatableMemory, false, append([]candidate{unknown}, candidates...), "unknown greedy far over dear within"},
	} {
		var names []string
		for _, c := range rank(test.all, test.signal, test.dedicated) {
			names = append(names, c.pod.Name)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
	candidates[4].pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	if c, ok := choose(candidates, Threshold{Signal: MemoryAvailable}, false); !ok || c.pod.Name != "far" {
		t.Errorf("chose %v: a static pod must stay", c.pod)
	}
	if _, ok := choose(candidates[4:], Threshold{Signal: MemoryAvailable}, false); ok {
		t.Error("chose a static pod")
	}
}

func TestExplain(t *testing.T) {
	c := user("p", 0, "1Ki", 4096, 4096, 7)
	q := resource.MustParse("2Ki")
	o := Observations{MemoryAvailable: {50 << 20, 1 << 30}, NodeFSAvailable: {1 << 20, 1 << 30}, PIDAvailable: {7, 1000}}
	for _, test := range []struct {
		signal Signal
		value  Amount
		want   string
	}{
		{MemoryAvailable, Amount{Quantity: 100 << 20, Format: resource.BinarySI}, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
			"Container c0 was using 4Ki, request is 1Ki, has larger consumption of memory. "},
		{NodeFSAvailable, Amount{Part: 0.25}, "The node was low on resource: ephemeral-storage. Threshold quantity: 256Mi, available: 1Mi. " +
			"Container c0 was using 2Ki, request is 1Ki, has larger consumption of ephemeral-storage. "},
		{PIDAvailable, Amount{Quantity: 10, Format: resource.DecimalSI}, "The node was low on resource: pids. Threshold quantity: 10, available: 7. "},
	} {
		message, annotations := c.explain(Threshold{Signal: test.signal, Value: test.value}, o)
		if message != test.want {
			t.Errorf("%s: got %q\nwant %q", test.signal, message, test.want)
		}
		if annotations["starved_resource"] != string(test.signal.resource()) {
			t.Errorf("%s: annotations %v", test.signal, annotations)
		}
	}
	c.pod.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: q}}
	_, annotations := c.explain(Threshold{Signal: MemoryAvailable}, o)
	if got, want := fmt.Sprint(annotations), "map[offending_containers:c0 offending_containers_usage:4Ki offending_pod:p offending_pod_usage:4Ki starved_resource:memory]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestGrace(t *testing.T) {
	p := testPod("p", nil, nil)
	hard, soft := Threshold{}, Threshold{Grace: time.Minute}
	if got := graceFor(p, hard, time.Hour); got != time.Second {
		t.Errorf("hard: %s", got)
	}
	if got := graceFor(p, soft, 20*time.Second); got != 20*time.Second {
		t.Errorf("soft: %s", got)
	}
	p.Spec.TerminationGracePeriodSeconds = new(int64(7))
	if got := graceFor(p, soft, 20*time.Second); got != 7*time.Second {
		t.Errorf("soft, of a pod that wants less: %s", got)
	}
}

func TestWelcome(t *testing.T) {
	bestEffort, burstable, static := testPod("p", []string{""}, nil), user("p", 0, "1Ki", 0, 0, 0).pod, testPod("p", nil, nil)
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	tolerant := testPod("p", []string{""}, nil)
	tolerant.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}}
	memory, disk := []v1.NodeConditionType{v1.NodeMemoryPressure}, []v1.NodeConditionType{v1.NodeDiskPressure}
	both := []v1.NodeConditionType{v1.NodeDiskPressure, v1.NodeMemoryPressure}
	for _, test := range []struct {
		name       string
		pod        *v1.Pod
		conditions []v1.NodeConditionType
		want       bool
	}{
		{"no pressure", bestEffort, nil, true},
		{"best effort", bestEffort, memory, false}, {"burstable", burstable, memory, true}, {"tolerant", tolerant, memory, true}, {"static", static, memory, true},
		{"burstable, disk", burstable, disk, false}, {"tolerant, disk", tolerant, disk, false}, {"static, disk", static, disk, true},
		{"burstable, both", burstable, both, false}, {"static, both", static, both, true},
	} {
		if got := welcome(test.pod, test.conditions); got != test.want {
			t.Errorf("%s: got %t", test.name, got)
		}
	}
}
