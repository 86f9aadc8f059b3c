package podcgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/pod"
)

// TestNodeLimits: pods together get what is not reserved, or everything without enforcement.
func TestNodeLimits(t *testing.T) {
	list := func(cpu, memory, pids string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory), "pid": resource.MustParse(pids)}
	}
	cfg := Config{Capacity: list("4", "8Gi", "1000"), Reserved: list("500m", "1Gi", "100")}
	for enforce, want := range map[bool]cgroup.Limits{
		false: {Shares: 4096, Memory: 8 << 30, Pids: 1000},
		true:  {Shares: 3584, Memory: 7 << 30, Pids: 900},
	} {
		cfg.Enforce = enforce
		got := cfg.nodeLimits()
		if got.Shares != want.Shares || got.Memory != want.Memory || got.Pids != want.Pids {
			t.Errorf("enforce %t: %+v, want %+v", enforce, got, want)
		}
		if q := cfg.Capacity["pid"]; q.Value() != 1000 {
			t.Errorf("the capacity has changed to %v", q.Value())
		}
	}
}

type admitter struct{ no *pod.Rejection }

func (a *admitter) Admit(*v1.Pod) *pod.Rejection  { return a.no }
func (a *admitter) Adopt(*v1.Pod)                 {}
func (a *admitter) Resize(*v1.Pod) *pod.Rejection { return a.no }
func (a *admitter) Release(types.UID)             {}

// TestAdmitter checks the sum of the burstable pods' requests.
func TestAdmitter(t *testing.T) {
	m := New(Config{}, Parts{})
	inner := &admitter{}
	w := m.Admitter(inner)
	make := func(uid, cpu string, class v1.PodQOSClass) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Status: v1.PodStatus{QOSClass: class}}
		p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}
		return p
	}
	tells := func(what string, want int64) {
		t.Helper()
		got := int64(-1)
		select {
		case <-m.changed:
			got = m.weight.Load()
		default:
		}
		if got != want {
			t.Errorf("%s: told %d, want %d", what, got, want)
		}
	}
	w.Admit(make("a", "100m", v1.PodQOSBurstable))
	w.Admit(make("b", "1", v1.PodQOSBurstable))
	tells("the newest counts", 1100)
	w.Admit(make("g", "1", v1.PodQOSGuaranteed))
	tells("another class", -1)
	w.Resize(make("a", "300m", v1.PodQOSBurstable))
	tells("resized", 1300)
	inner.no = &pod.Rejection{}
	w.Resize(make("a", "3", v1.PodQOSBurstable))
	w.Admit(make("c", "3", v1.PodQOSBurstable))
	tells("refused", -1)
	w.Adopt(make("d", "1", v1.PodQOSBurstable))
	tells("adopted", 2300)
	w.Release("b")
	tells("released", 1300)
	w.Release("g")
	tells("another class released", -1)
}

// TestUndo: what Start noted is removed once, and kept while processes run in it.
func TestUndo(t *testing.T) {
	dir := t.TempDir()
	top, pod := filepath.Join(dir, "cgroup"), filepath.Join("agents", "kubepods", "burstable", "pod1")
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(top, "cgroup.controllers"), "cpu memory pids\n")
	write(filepath.Join(dir, "self", "mountinfo"), "30 23 0:26 / "+top+" rw - cgroup2 cgroup2 rw\n")
	if err := os.MkdirAll(filepath.Join(top, pod), 0o755); err != nil {
		t.Fatal(err)
	}
	open := func(cfg cgroup.Config) (*cgroup.Tree, error) {
		cfg.Proc = dir
		return cgroup.Open(cfg)
	}
	f := NoteFileIn(dir)
	undo := func(what, want string) {
		t.Helper()
		if got, err := f.undo(t.Context(), open); err != nil || got != want {
			t.Errorf("%s: removed %q (%v), want %q", what, got, err, want)
		}
	}
	undo("nothing noted", "")
	if err := f.write(cgroup.Config{Root: "/agents"}); err != nil {
		t.Fatal(err)
	}
	process := filepath.Join(top, pod, "process") // a directory that cannot be removed
	write(process, "")
	if got, err := f.undo(t.Context(), open); err == nil || !strings.Contains(err.Error(), "cannot remove cgroup /agents/kubepods") {
		t.Errorf("in use: removed %q, %v", got, err)
	}
	if err := os.Remove(process); err != nil {
		t.Fatal(err)
	}
	undo("free", "/agents/kubepods")
	if names, err := os.ReadDir(filepath.Join(top, "agents")); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	undo("again", "")
	write(string(f), "{")
	if _, err := f.undo(t.Context(), open); err == nil || !strings.Contains(err.Error(), string(f)+" is not what the kubelet wrote") {
		t.Errorf("a broken note: %v", err)
	}
}
