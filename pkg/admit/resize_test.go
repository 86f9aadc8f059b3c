package admit

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/pod"
)

func TestResize(t *testing.T) {
	for _, test := range []struct {
		name   string
		config func(*Config)
		had    string // the pod's CPU; the node has 2 CPUs
		other  string // CPU of another
		pod    *v1.Pod
		want   *pod.Rejection
		used   string // CPU of all pods afterwards
	}{
		{"grows", nil, "500m", "1", newPod("p", requests("cpu", "1")), nil, "2"},
		{"shrinks", nil, "500m", "1", newPod("p", requests("cpu", "100m")), nil, "1100m"},
		{"not now", nil, "500m", "1", newPod("p", requests("cpu", "1100m")),
			&pod.Rejection{Reason: "Deferred", Message: "Node didn't have enough resource: cpu, requested: 1100, used: 1000, capacity: 2000"}, "1500m"},
		{"never", nil, "500m", "1", newPod("p", requests("cpu", "2001m")),
			&pod.Rejection{Reason: "Infeasible", Message: "Node didn't have enough capacity: cpu, requested: 2001, capacity: 2000"}, "1500m"},
		{"never, for memory", nil, "500m", "1", newPod("p", requests("cpu", "500m", "memory", "2Gi")),
			&pod.Rejection{Reason: "Infeasible", Message: "Node didn't have enough capacity: memory, requested: 2147483648, capacity: 1073741824"}, "1500m"},
		{"shrinks on a node that has too little", nil, "1500m", "2", newPod("p", requests("cpu", "1400m")), nil, "3400m"},
		{"CPU that does not grow is not looked at", nil, "1500m", "2", newPod("p", requests("cpu", "1500m", "memory", "1Gi")), nil, "3500m"},
		{"pod-level", nil, "500m", "1", newPod("p", requests("cpu", "100m"), podResources("cpu", "1500m")),
			&pod.Rejection{Reason: "Deferred", Message: "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"}, "1500m"},
		{"Windows", func(c *Config) { c.OS = "windows" }, "500m", "1", newPod("p", requests("cpu", "1")),
			&pod.Rejection{Reason: "Infeasible", Message: "In-place pod resize is not supported on this node"}, "1500m"},
		{"static", nil, "500m", "1", newPod("p", requests("cpu", "1"), staticPod),
			&pod.Rejection{Reason: "Infeasible", Message: "In-place resize of static-pods is not supported"}, "1500m"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := testConfig()
			if test.config != nil {
				test.config(&cfg)
			}
			a := New(cfg)
			a.Adopt(newPod("p", requests("cpu", test.had)))
			a.Adopt(newPod("other", requests("cpu", test.other)))
			got := a.Resize(test.pod)
			if (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
			if used := a.Allocated()[v1.ResourceCPU]; used.Cmp(resource.MustParse(test.used)) != 0 {
				t.Errorf("allocated %s, want %s", used.String(), test.used)
			}
		})
	}
	a := New(testConfig())
	a.Adopt(newPod("p", requests("cpu", "500m")))
	a.Adopt(newPod("other", requests("cpu", "1500m")))
	if a.Resize(newPod("p", requests("cpu", "1"))) == nil {
		t.Error("granted without room")
	}
	a.Release("uid-other")
	if no := a.Resize(newPod("p", requests("cpu", "1"))); no != nil {
		t.Errorf("refused after a release: %+v", no)
	}
}
