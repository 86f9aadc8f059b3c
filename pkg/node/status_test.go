package node

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/host"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func linuxFacts() host.Facts {
	return host.Facts{Hostname: "n1", OS: "linux", Arch: "amd64", OSImage: "Debian GNU/Linux 12 (bookworm)", KernelVersion: "6.1.0-18-amd64",
		MachineID: "8e2d", SystemUUID: "4c4c", BootID: "b-1", CPUs: 2, Memory: 8 << 30, Swap: 1 << 30,
		HugePages: map[uint64]uint64{2 << 20: 64 << 20, 1 << 30: 0}}
}

func windowsFacts() host.Facts {
	return host.Facts{Hostname: "win-1", OS: "windows", Arch: "amd64", OSImage: "Windows Server 2016 Datacenter", KernelVersion: "10.0.14393.6709",
		MachineID: "WIN-1", SystemUUID: "4C4C", BootID: "17", WindowsMajor: 10, WindowsBuild: 14393, WindowsUBR: 6709, CPUs: 4, Memory: 16 << 30}
}

func inputs(t *testing.T, facts host.Facts, config Config) Inputs {
	t.Helper()
	config.Name = facts.Hostname
	config, err := config.complete()
	if err != nil {
		t.Fatal(err)
	}
	return Inputs{Config: config, Now: start, Facts: facts, Engine: Runtime{Version: "20.10.24", Handlers: []string{"runc"}}, Disk: host.Disk{Capacity: 100 << 30},
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}}
}

func TestStatusGolden(t *testing.T) {
	many := func() (list []v1.ContainerImage) {
		for i := range 60 {
			list = append(list, v1.ContainerImage{Names: []string{fmt.Sprintf("img:%02d", i)}, SizeBytes: int64(i%7) << 20})
		}
		list[59].Names = []string{"big@sha256:1", "big:1", "big:2", "big:3", "big:4", "big:5"}
		list[59].SizeBytes = 1 << 30
		return list
	}
	later := start.Add(time.Hour)
	cases := map[string]func() Inputs{
		"linux-new": func() Inputs {
			return inputs(t, linuxFacts(), Config{})
		},
		"windows-new": func() Inputs {
			in := inputs(t, windowsFacts(), Config{MaxPods: 30, PodsPerCore: 5})
			in.Addresses = in.Addresses[:1]
			return in
		},
		"linux-reserved": func() Inputs {
			return inputs(t, linuxFacts(), Config{MaxImages: new(-1),
				SystemReserved: v1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("256Mi")},
				KubeReserved:   v1.ResourceList{"cpu": resource.MustParse("3"), "ephemeral-storage": resource.MustParse("1Gi")},
				EvictionHard:   map[string]string{"memory.available": "5%", "nodefs.available": "2Gi"}})
		},
		"linux-images": func() Inputs {
			in := inputs(t, linuxFacts(), Config{MaxImages: new(3)})
			in.Images = many()
			return in
		},
		"linux-engine-died": func() Inputs {
			in := inputs(t, linuxFacts(), Config{})
			in.Known = Status(in)
			in.Now, in.EngineErr, in.NetworkErr = later, errors.New("cannot ping the engine:\n connection refused"), errors.New("no pod CIDR yet")
			in.Pressure = Pressure{Memory: true, PID: true}
			in.VolumesInUse = []v1.UniqueVolumeName{"b", "a"}
			return in
		},
		"linux-foreign": func() Inputs {
			in := inputs(t, linuxFacts(), Config{})
			in.Known = v1.NodeStatus{
				Capacity:    v1.ResourceList{"example.com/dongle": resource.MustParse("4"), "hugepages-64Ki": resource.MustParse("1Gi")},
				Allocatable: v1.ResourceList{"example.com/gone": resource.MustParse("4")},
				Conditions: []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "RouteCreated"},
					{Type: v1.NodeReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(-time.Hour))}},
				VolumesAttached: []v1.AttachedVolume{{Name: "v"}},
				Images:          []v1.ContainerImage{{Names: []string{"kept:1"}, SizeBytes: 1}},
			}
			return in
		},
	}
	for name, make := range cases {
		t.Run(name, func(t *testing.T) {
			in := make()
			got, err := yaml.Marshal(Status(in))
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := yaml.Marshal(Status(in)); string(again) != string(got) {
				t.Errorf("not the same twice:\n%s\n%s", got, again)
			}
			golden(t, name, got)
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
}

func TestTransitions(t *testing.T) {
	in := inputs(t, linuxFacts(), Config{})
	fresh := Status(in)
	if got := fmt.Sprint(transitions("n1", v1.NodeStatus{}, fresh)); !strings.Contains(got, "NodeHasSufficientMemory") ||
		!strings.Contains(got, "NodeHasNoDiskPressure") || !strings.Contains(got, "NodeHasSufficientPID") || strings.Contains(got, "Ready") {
		t.Errorf("a new node: %s", got)
	}
	in.Known, in.EngineErr = fresh, errors.New("gone")
	in.Pressure.Disk = true
	in.Facts.BootID = "b-2"
	want := "[{Normal NodeHasDiskPressure Node n1 status is now: NodeHasDiskPressure} {Normal NodeNotReady Node n1 status is now: NodeNotReady}" +
		" {Warning Rebooted Node n1 has been rebooted, boot id: b-2}]"
	if got := fmt.Sprint(transitions("n1", fresh, Status(in))); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := transitions("n1", fresh, fresh); got != nil {
		t.Errorf("nothing changed, but %v", got)
	}
}

func TestSameIgnoresHeartbeats(t *testing.T) {
	in := inputs(t, linuxFacts(), Config{})
	a := Status(in)
	in.Known, in.Now = a, start.Add(time.Minute)
	b := Status(in)
	if !same(a, b) {
		t.Error("a later heartbeat counts as a change")
	}
	if b.Conditions[0].LastHeartbeatTime.Equal(&a.Conditions[0].LastHeartbeatTime) {
		t.Error("the heartbeat time does not move")
	}
	in.NetworkErr = errors.New("x")
	if same(a, Status(in)) {
		t.Error("a node that is no longer ready is the same")
	}
}

func TestConfigRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		want   string // "": accepted
	}{
		"plain":           {Config{Name: "n1", Labels: map[string]string{"a": "b", "example.com/x": "", "node.kubernetes.io/pool": "x", "topology.kubernetes.io/zone": "z"}}, ""},
		"upper case name": {Config{Name: "N1"}, `node name "N1"`},
		"role label":      {Config{Name: "n1", Labels: map[string]string{"node-role.kubernetes.io/worker": ""}}, `"node-role.kubernetes.io/worker": the API server does not let a node set this label`},
		"restricted":      {Config{Name: "n1", Labels: map[string]string{"x.node-restriction.kubernetes.io/a": ""}}, "does not let a node set this label"},
		"k8s.io":          {Config{Name: "n1", Labels: map[string]string{"foo.k8s.io/a": ""}}, "does not let a node set this label"},
		"no label":        {Config{Name: "n1", Labels: map[string]string{"a b": "c"}}, `"a b"`},
		"bad value":       {Config{Name: "n1", Labels: map[string]string{"a": "b c"}}, `value "b c"`},
		"bad threshold":   {Config{Name: "n1", EvictionHard: map[string]string{"memory.available": "120%"}}, "memory.available"},
		"bad hostname":    {Config{Name: "n1", Hostname: "a b"}, `hostname "a b"`},
	} {
		_, err := New(c.config, Parts{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func FuzzThreshold(f *testing.F) {
	for _, s := range []string{"10%", "100Mi", "-1%", "1e3", "%", "NaN%"} {
		f.Add(s, int64(1<<40))
	}
	f.Fuzz(func(t *testing.T, s string, total int64) {
		q, err := threshold(s, total)
		if err == nil && strings.HasSuffix(s, "%") && total >= 0 && (q.Sign() < 0 || float64(q.Value()) > float64(total)*1.0001) {
			t.Errorf("%q of %d is %s", s, total, q.String())
		}
	})
}

func TestWhatTheEngineCanDo(t *testing.T) {
	in := inputs(t, linuxFacts(), Config{})
	in.Engine = Runtime{Version: "29.1.0", Handlers: []string{"runc", "runsc"}, RecursiveReadOnly: true}
	s := Status(in)
	var names []string
	for _, h := range s.RuntimeHandlers {
		names = append(names, h.Name)
		if !*h.Features.RecursiveReadOnlyMounts || *h.Features.UserNamespaces {
			t.Errorf("handler %+v", h.Features)
		}
	}
	if !slices.Equal(names, []string{"", "runc", "runsc"}) || !*s.Features.SupplementalGroupsPolicy {
		t.Errorf("handlers %q, features %+v", names, s.Features)
	}
	if !slices.Contains(s.DeclaredFeatures, "RestartAllContainersOnContainerExits") || slices.Contains(s.DeclaredFeatures, "UserNamespacesHostNetworkSupport") || !slices.IsSorted(s.DeclaredFeatures) {
		t.Errorf("declared: %q", s.DeclaredFeatures)
	}
	in.Known, in.EngineErr, in.Engine = s, errors.New("it does not answer"), Runtime{}
	if again := Status(in); len(again.RuntimeHandlers) != 3 {
		t.Errorf("while the engine is silent: %+v", again.RuntimeHandlers)
	}
	in.Facts.OS = "windows"
	s = Status(in)
	if *s.Features.SupplementalGroupsPolicy || slices.Contains(s.DeclaredFeatures, "InPlacePodVerticalScalingInitContainers") {
		t.Errorf("Windows: %+v, %q", s.Features, s.DeclaredFeatures)
	}
}

// The pod network's condition appears beside the other conditions. Without one, others' condition stays.
func TestNetworkUnavailable(t *testing.T) {
	in := inputs(t, linuxFacts(), Config{})
	in.Known.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: "NoRouteCreated"}}
	if c := find(Status(in).Conditions, v1.NodeNetworkUnavailable); c == nil || c.Reason != "NoRouteCreated" {
		t.Errorf("%+v", c)
	}
	in.NetworkUnavailable = &v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "NetworkReady", Message: "m"}
	c := find(Status(in).Conditions, v1.NodeNetworkUnavailable)
	if c == nil || c.Reason != "NetworkReady" || c.LastTransitionTime.IsZero() || c.LastHeartbeatTime.IsZero() {
		t.Errorf("%+v", c)
	}
}
