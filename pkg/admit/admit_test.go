package admit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

func list(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

type option func(*v1.Pod)

func newPod(name string, options ...option) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	p.Spec.Containers = []v1.Container{{Name: "app"}}
	for _, o := range options {
		o(p)
	}
	return p
}

func requests(pairs ...string) option {
	return func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = list(pairs...) }
}

func port(hostIP string, protocol v1.Protocol, number int32) option {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, v1.ContainerPort{HostIP: hostIP, Protocol: protocol, HostPort: number, ContainerPort: 1})
	}
}

func initContainer(always bool, reqs v1.ResourceList, hostPort int32) option {
	return func(p *v1.Pod) {
		c := v1.Container{Name: fmt.Sprintf("init%d", len(p.Spec.InitContainers)), Resources: v1.ResourceRequirements{Requests: reqs}}
		if hostPort > 0 {
			c.Ports = []v1.ContainerPort{{HostPort: hostPort, ContainerPort: 1}}
		}
		if always {
			policy := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &policy
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

func staticPod(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }

func selector(key, value string) option {
	return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func tolerate(key string) option {
	return func(p *v1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: key, Operator: v1.TolerationOpExists})
	}
}

func podResources(pairs ...string) option {
	return func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{Requests: list(pairs...)} }
}

// testNode has 2 CPUs, 1 GiB, 10 GiB of storage, 5 pods and 2 of vendor.com/device.
func testNode() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{
		"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node-a", "disk": "ssd",
	}}}
}

func testConfig(change ...func(*Config)) Config {
	node := testNode()
	cfg := Config{
		NodeName: "node-a", Platform: pod.Platform{OS: "linux", Arch: "amd64"}, MaxPods: 5,
		Allocatable: func() v1.ResourceList {
			return list("cpu", "2", "memory", "1Gi", "ephemeral-storage", "10Gi", "vendor.com/device", "2")
		},
		Node: func() *v1.Node { return node },
	}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

func onNode(change func(*v1.Node)) func(*Config) {
	return func(c *Config) {
		node := testNode()
		change(node)
		c.Node = func() *v1.Node { return node }
	}
}

func taint(key string, effect v1.TaintEffect) func(*Config) {
	return onNode(func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: key, Effect: effect}} })
}

func TestAdmit(t *testing.T) {
	osIs := func(name v1.OSName) option { return func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: name} } }
	osLabel := func(name string) option {
		return func(p *v1.Pod) { p.Labels = map[string]string{"kubernetes.io/os": name} }
	}
	strict := func(p *v1.Pod) {
		policy := v1.SupplementalGroupsPolicyStrict
		p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &policy}
	}
	affinity := func(key string, values ...string) option {
		return func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: values}}}},
			}}}
		}
	}
	windows := func(c *Config) { c.OS = "windows" }
	gate := func(c *Config) { c.HyperVContainer = true }
	isolated := func(value string) option {
		return func(p *v1.Pod) {
			p.Annotations = map[string]string{podspec.IsolationAnnotation: value}
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "second"})
		}
	}
	noNode := func(c *Config) { c.Node = func() *v1.Node { return nil } }
	overhead := func(p *v1.Pod) { p.Spec.Overhead = list("cpu", "600m") }
	hostNetwork := func(p *v1.Pod) { p.Spec.HostNetwork = true }

	const ports = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: "
	const affine = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
	const taints = "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate: "

	tests := []struct {
		name   string
		config []func(*Config)
		before []*v1.Pod // adopted
		pod    *v1.Pod
		want   string // "reason: message", "" for admitted
	}{
		{name: "empty pod", pod: newPod("p")},
		{name: "fits exactly", before: []*v1.Pod{newPod("a", requests("cpu", "1500m"))}, pod: newPod("p", requests("cpu", "500m"))},
		{
			name: "cpu", before: []*v1.Pod{newPod("a", requests("cpu", "1800m"))}, pod: newPod("p", requests("cpu", "500m")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 500, used: 1800, capacity: 2000",
		},
		{
			name: "memory", before: []*v1.Pod{newPod("a", requests("memory", "1000Mi"))}, pod: newPod("p", requests("memory", "100Mi")),
			want: "OutOfmemory: Node didn't have enough resource: memory, requested: 104857600, used: 1048576000, capacity: 1073741824",
		},
		{
			name: "storage", pod: newPod("p", requests("ephemeral-storage", "11Gi")),
			want: "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240",
		},
		{
			name: "cpu is told before memory", pod: newPod("p", requests("memory", "2Gi", "cpu", "3")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{
			name: "device", before: []*v1.Pod{newPod("a", requests("vendor.com/device", "1"))}, pod: newPod("p", requests("vendor.com/device", "2")),
			want: "OutOfvendor.com/device: Node didn't have enough resource: vendor.com/device, requested: 2, used: 1, capacity: 2",
		},
		{name: "device that this node does not count", pod: newPod("p", requests("other.com/device", "7"))},
		{
			name: "hugepages that this node lacks", pod: newPod("p", requests("hugepages-2Mi", "4Mi")),
			want: "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, capacity: 0",
		},
		{name: "a request of zero fits a full node", before: []*v1.Pod{newPod("a", requests("cpu", "5"))}, pod: newPod("p", requests("cpu", "0"))},
		{name: "no request fits a full node", before: []*v1.Pod{newPod("a", requests("cpu", "5"))}, pod: newPod("p")},
		{
			name: "pods", before: []*v1.Pod{newPod("a"), newPod("b"), newPod("c"), newPod("d"), newPod("e")}, pod: newPod("p"),
			want: "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 5, capacity: 5",
		},
		{name: "last pod", before: []*v1.Pod{newPod("a"), newPod("b"), newPod("c"), newPod("d")}, pod: newPod("p")},
		{
			name: "init containers count by the largest", pod: newPod("p", requests("cpu", "1"), initContainer(false, list("cpu", "2500m"), 0)),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2500, used: 0, capacity: 2000",
		},
		{name: "init containers do not add up", pod: newPod("p", requests("cpu", "2"), initContainer(false, list("cpu", "2"), 0), initContainer(false, list("cpu", "2"), 0))},
		{
			name: "sidecars add up", pod: newPod("p", requests("cpu", "1500m"), initContainer(true, list("cpu", "600m"), 0)),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000",
		},
		{
			name: "overhead adds up", pod: newPod("p", requests("cpu", "1500m"), overhead),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000",
		},
		{
			name: "the pod's own request counts", pod: newPod("p", requests("cpu", "1"), podResources("cpu", "3")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{
			name: "no pod-level resources on Windows", config: []func(*Config){windows}, pod: newPod("p", podResources("cpu", "1")),
			want: "PodLevelResourcesNotSupported: pod-level resources are not supported on Windows",
		},
		{
			name: "two containers with Hyper-V isolation", config: []func(*Config){windows, gate}, pod: newPod("p", isolated("hyperv")),
			want: `PodFeatureUnsupported: the annotation experimental.windows.kubernetes.io/isolation-type is "hyperv", but the pod has 2 containers that run at the same time: ` +
				`containers with Hyper-V isolation share no network, so that a pod has one; split the pod, or remove the annotation`,
		},
		{name: "without the gate", config: []func(*Config){windows}, pod: newPod("p", isolated("hyperv"))},
		{name: "on Linux", config: []func(*Config){gate}, pod: newPod("p", isolated("hyperv"))},
		{name: "process isolation", config: []func(*Config){windows, gate}, pod: newPod("p", isolated("process"))},

		{name: "os field", pod: newPod("p", osIs("linux"))},
		{name: "other os field", pod: newPod("p", osIs("windows")), want: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"},
		{name: "other os field on Windows", config: []func(*Config){windows}, pod: newPod("p", osIs("linux")), want: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"},
		{name: "os label", pod: newPod("p", osLabel("linux"))},
		{
			name: "other os label", pod: newPod("p", osLabel("windows")),
			want: "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		},

		{name: "selector", pod: newPod("p", selector("disk", "ssd"))},
		{name: "other selector", pod: newPod("p", selector("disk", "hdd")), want: affine},
		{name: "selector of the other system", pod: newPod("p", selector("kubernetes.io/os", "windows")), want: affine},
		{name: "affinity", pod: newPod("p", affinity("disk", "hdd", "ssd"))},
		{name: "other affinity", pod: newPod("p", affinity("disk", "hdd")), want: affine},
		{name: "selector before the node is known", config: []func(*Config){noNode}, pod: newPod("p", staticPod, selector("disk", "hdd"))},
		{
			name: "labels newer than the watch", pod: newPod("p", selector("gpu", "yes")),
			config: []func(*Config){func(c *Config) {
				c.FreshNode = func(context.Context) *v1.Node { n := testNode(); n.Labels["gpu"] = "yes"; return n }
			}},
		},
		{
			name: "labels asked for in vain", pod: newPod("p", selector("gpu", "yes")), want: affine,
			config: []func(*Config){func(c *Config) { c.FreshNode = func(context.Context) *v1.Node { return nil } }},
		},
		{
			name: "labels are not asked for when resources lack", pod: newPod("p", selector("gpu", "yes"), requests("cpu", "3")),
			want:   "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
			config: []func(*Config){func(c *Config) { c.FreshNode = func(context.Context) *v1.Node { panic("asked") } }},
		},
		{name: "this node", pod: newPod("p", func(p *v1.Pod) { p.Spec.NodeName = "node-a" })},
		{
			name: "other node", pod: newPod("p", func(p *v1.Pod) { p.Spec.NodeName = "node-b" }),
			want: "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
		},

		{name: "port", before: []*v1.Pod{newPod("a", port("", "", 80))}, pod: newPod("p", port("", "TCP", 80)), want: ports + "port 80/TCP is held by pod default/a"},
		{name: "other port", before: []*v1.Pod{newPod("a", port("", "TCP", 80))}, pod: newPod("p", port("", "TCP", 81))},
		{name: "port of the other protocol", before: []*v1.Pod{newPod("a", port("", "UDP", 80))}, pod: newPod("p", port("", "TCP", 80))},
		{name: "port on another address", before: []*v1.Pod{newPod("a", port("10.0.0.1", "TCP", 80))}, pod: newPod("p", port("10.0.0.2", "TCP", 80))},
		{
			name: "port on the same address", before: []*v1.Pod{newPod("a", port("10.0.0.1", "TCP", 80))}, pod: newPod("p", port("10.0.0.1", "TCP", 80)),
			want: ports + "port 10.0.0.1:80/TCP is held by pod default/a",
		},
		{name: "port on all against one", before: []*v1.Pod{newPod("a", port("10.0.0.1", "TCP", 80))}, pod: newPod("p", port("0.0.0.0", "TCP", 80)), want: ports + "port 80/TCP is held by pod default/a"},
		{name: "port on one against all", before: []*v1.Pod{newPod("a", port("::", "TCP", 80))}, pod: newPod("p", port("10.0.0.1", "TCP", 80)), want: ports + "port 10.0.0.1:80/TCP is held by pod default/a"},
		{name: "port of a sidecar", before: []*v1.Pod{newPod("a", initContainer(true, nil, 80))}, pod: newPod("p", port("", "TCP", 80)), want: ports + "port 80/TCP is held by pod default/a"},
		{name: "port of an init container", before: []*v1.Pod{newPod("a", initContainer(false, nil, 80))}, pod: newPod("p", port("", "TCP", 80))},
		{name: "port of the host's network", before: []*v1.Pod{newPod("a", hostNetwork, port("", "TCP", 0))}, pod: newPod("p", port("", "TCP", 1)), want: ports + "port 1/TCP is held by pod default/a"},
		{name: "same port twice in a pod", pod: newPod("p", port("", "TCP", 80), port("", "TCP", 80))},

		{name: "taint", config: []func(*Config){taint("down", v1.TaintEffectNoExecute)}, pod: newPod("p"), want: taints + "down:NoExecute"},
		{name: "tolerated taint", config: []func(*Config){taint("down", v1.TaintEffectNoExecute)}, pod: newPod("p", tolerate("down"))},
		{name: "static pods stand any taint", config: []func(*Config){taint("down", v1.TaintEffectNoExecute)}, pod: newPod("p", staticPod)},
		{name: "taints of the scheduler", config: []func(*Config){taint("down", v1.TaintEffectNoSchedule)}, pod: newPod("p")},

		{name: "strict groups", pod: newPod("p", strict), want: "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node"},
		{
			name: "strict groups where the node has them", pod: newPod("p", strict),
			config: []func(*Config){onNode(func(n *v1.Node) { yes := true; n.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &yes} })},
		},
		{
			name: "resources are told before ports", before: []*v1.Pod{newPod("a", port("", "TCP", 80))}, pod: newPod("p", port("", "TCP", 80), requests("cpu", "3")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := New(testConfig(test.config...))
			for _, p := range test.before {
				a.Adopt(p)
			}
			got := ""
			r := a.Admit(test.pod)
			if r != nil && r.Ask != nil {
				(*r.Ask)(t.Context())
				r = a.Admit(test.pod)
			}
			if r != nil {
				got = r.Reason + ": " + r.Message
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			want := len(test.before)
			if test.want == "" {
				want++
			}
			allocated := a.Allocated()
			if n := allocated.Pods().Value(); n != int64(want) {
				t.Errorf("%d pods are in, want %d", n, want)
			}
		})
	}
}

func TestAdmitAgainReplaces(t *testing.T) {
	a := New(testConfig())
	if r := a.Admit(newPod("p", requests("cpu", "2"), port("", "TCP", 80))); r != nil {
		t.Fatal(r)
	}
	if r := a.Admit(newPod("p", requests("cpu", "1500m"), port("", "TCP", 80))); r != nil {
		t.Fatalf("its own resources and ports stand in its way: %v", r)
	}
	if r := a.Admit(newPod("p", requests("cpu", "2500m"))); r == nil || r.Message != "Node didn't have enough resource: cpu, requested: 2500, used: 0, capacity: 2000" {
		t.Fatalf("got %v", r)
	}
	if cpu := cpuOf(a); cpu != 1500 {
		t.Errorf("a refused pod holds %dm, want the former 1500m", cpu)
	}
	a.Release("uid-p")
	a.Release("uid-p")
	a.Release("uid-unknown")
	if all := a.Allocated(); len(all) != 1 || all.Pods().Value() != 0 {
		t.Errorf("left after Release: %v", all)
	}
	if r := a.Admit(newPod("q", port("", "TCP", 80))); r != nil {
		t.Errorf("released port is still held: %v", r)
	}
}

func cpuOf(a *Admitter) int64 {
	all := a.Allocated()
	return all.Cpu().MilliValue()
}

// TestSums checks that the running sums equal the sum over the admitted pods, over a random history.
func TestSums(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	a := New(testConfig(func(c *Config) { c.MaxPods = 20 }))
	in := map[string]*v1.Pod{}
	for step := range 2000 {
		name := fmt.Sprintf("p%d", random.IntN(30))
		p := newPod(name, requests("cpu", fmt.Sprintf("%dm", random.IntN(400)), "memory", fmt.Sprint(random.IntN(1<<27)), "vendor.com/device", fmt.Sprint(random.IntN(2))))
		switch random.IntN(3) {
		case 0:
			a.Release(p.UID)
			delete(in, name)
		case 1:
			a.Adopt(p)
			in[name] = p
		default:
			if a.Admit(p) == nil {
				in[name] = p
			}
		}
		want := list("pods", fmt.Sprint(len(in)))
		for _, p := range in {
			for r, q := range p.Spec.Containers[0].Resources.Requests {
				sum := want[r]
				sum.Add(q)
				want[r] = sum
			}
		}
		got := a.Allocated()
		for r := range want {
			if w, g := want[r], got[r]; w.Cmp(g) != 0 {
				t.Fatalf("step %d: %s is %s, want %s", step, r, g.String(), w.String())
			}
		}
	}
}

func TestAllocatedFromOtherGoroutines(t *testing.T) {
	a := New(testConfig())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			if cpu := cpuOf(a); cpu != 0 && cpu != 100 {
				t.Errorf("torn read: %d", cpu)
			}
		}
	}()
	for range 200 {
		a.Adopt(newPod("p", requests("cpu", "100m")))
		a.Release("uid-p")
	}
	<-done
}

// TestAdmitDoesNotAsk: Admit never asks the API server itself. An answer counts once, even a failed one, and not for a pod that has been
// released.
func TestAdmitDoesNotAsk(t *testing.T) {
	asked := 0
	a := New(Config{NodeName: "node-a", Platform: pod.Platform{OS: "linux"}, MaxPods: 10, Allocatable: func() v1.ResourceList { return list("cpu", "2") }, Node: testNode,
		FreshNode: func(context.Context) *v1.Node { asked++; panic("the API server is away") }})
	p := newPod("p", selector("gpu", "yes"))
	for range 2 {
		no := a.Admit(p)
		if no == nil || no.Ask == nil || asked != 0 {
			t.Fatalf("%+v, asked %d times", no, asked)
		}
	}
	func() {
		defer func() { _ = recover() }()
		(*a.Admit(p).Ask)(t.Context())
	}()
	if no := a.Admit(p); no == nil || no.Ask != nil || no.Reason != ReasonNodeAffinity || asked != 1 {
		t.Errorf("after asking in vain: %+v", no)
	}
	if no := a.Admit(p); no == nil || no.Ask == nil {
		t.Errorf("the next time: %+v", no)
	}
	a.fresh[p.UID] = testNode()
	if a.Release(p.UID); len(a.fresh) > 0 {
		t.Errorf("kept for a pod that has gone: %v", a.fresh)
	}
}
