package docker

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// TestEveryLabelIsSealed: no label of ours can be forgotten, and only engine.Client.Create, which seals, creates containers.
func TestEveryLabelIsSealed(t *testing.T) {
	var files []string
	if err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") && filepath.Dir(path) != "dockertest" {
			files = append(files, filepath.ToSlash(path))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name != "engine/request.go" && (strings.Contains(string(text), ".ContainerCreate(") || strings.Contains(string(text), "/containers/create")) {
			t.Errorf("%s makes containers by itself; only engine.Client.Create seals them", name)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Label") {
				return true
			}
			if value, ok := spec.Values[0].(*ast.BasicLit); ok {
				if label, _ := strconv.Unquote(value.Value); !slices.Contains(identity.OwnLabels(), label) {
					t.Errorf("%s: %s is missing in ownLabels", name, spec.Names[0].Name)
				}
			}
			return true
		})
	}
	c := container.Config{Labels: map[string]string{identity.LabelNode: "n", "other": "x"}}
	sealed := identity.Seal(&c)
	if len(c.Labels) != 2 || len(sealed.Labels) != len(identity.OwnLabels())+1 || sealed.Labels[identity.LabelNode] != "n" || sealed.Labels["other"] != "x" {
		t.Errorf("%v of %v", sealed.Labels, c.Labels)
	}
}

// stranger creates a container like a user with access to the engine, and returns its id.
func (r *rig) stranger(name string, labels map[string]string, start bool) string {
	r.t.Helper()
	c, err := r.API(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	made, err := c.ContainerCreate(r.t.Context(), &container.Config{Image: testImage, Cmd: []string{"pause"}, Labels: labels}, nil, nil, nil, name)
	if err != nil {
		r.t.Fatal(err)
	}
	if start {
		if err := c.ContainerStart(r.t.Context(), made.ID, container.StartOptions{}); err != nil {
			r.t.Fatal(err)
		}
	}
	return made.ID
}

// TestOfOthers: containers of dockershim and of cri-dockerd are those of another kubelet; ours are not, nor what a user runs.
func TestOfOthers(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	r.run(r.pod("ours", []string{"pause"}))
	for name, kind := range map[string]string{"k8s_POD_theirs_ns_uid-theirs_0": identity.TypeSandbox, "k8s_c0_theirs_ns_uid-theirs_0": identity.TypeContainer, "happy_turing": "", "holder": identity.TypeHolder} {
		r.stranger(name, map[string]string{identity.LabelPodUID: "uid-theirs", identity.LabelType: kind}, true)
	}
	if names, err := r.OfOthers(t.Context()); err != nil || !slices.Equal(names, []string{"k8s_POD_theirs_ns_uid-theirs_0", "k8s_c0_theirs_ns_uid-theirs_0"}) {
		t.Errorf("found %q, %v", names, err)
	}
}

// TestStrangers: containers that others created with our labels, by an image or manually, count as no pod's attempt, make no pod appear, and are left
// alone; the pods and the agent continue to work.
func TestStrangers(t *testing.T) {
	for _, events := range []bool{false, true} {
		t.Run("events "+strconv.FormatBool(events), func(t *testing.T) { testStrangers(t, events) })
	}
}

func testStrangers(t *testing.T, events bool) {
	r := fakeRig(t, dockertest.Options{}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var changes <-chan types.UID
	if events {
		changes = r.Changes(ctx)
		<-changes
		if _, err := r.ObserveAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	victim := r.pod("victim", []string{"pause"})
	innocent := r.run(victim)[0]
	good := claims(r, victim)
	labelled := func(pairs ...string) map[string]string {
		labels := maps.Clone(good)
		for i := 0; i < len(pairs); i += 2 {
			labels[pairs[i]] = pairs[i+1]
		}
		return labels
	}
	proper := identity.Container{UID: victim.UID, Namespace: "ns", Pod: "victim", Name: "c0", Attempt: 999}.EngineName()
	strangers := []string{}
	for name, labels := range map[string]map[string]string{
		"happy_turing":                      good, // docker run of an image with all labels
		"k8s_c0_victim_ns_uid-victim_998":   good,
		"k8s_c0_victim_ns_uid-other_999":    good,
		proper + "_x":                       good,
		"k8s_image_" + r.cfg.Node + "_c0de": labelled(identity.LabelType, identity.TypeHolder),
		"holder":                            labelled(identity.LabelType, identity.TypeHolder),
		"k8s_c0_victim_ns_uid-victim_7":     labelled(identity.LabelType, "", identity.LabelRestartCount, "7"),
		"k8s_POD_victim_ns_uid-victim_8":    labelled(identity.LabelContainerName, identity.SandboxName, identity.LabelRestartCount, "8"),
		"k8s_c0_victim_ns_uid-victim_9":     labelled(identity.LabelType, identity.TypeSandbox, identity.LabelRestartCount, "9"),
		"k8s_c0_victim_ns_.._1":             labelled(identity.LabelPodUID, "..", identity.LabelRestartCount, "1"),
		"slash":                             labelled(identity.LabelPodUID, "../../etc"),
		"k8s_c0_victim_ns_uid-victim_-1":    labelled(identity.LabelRestartCount, "-1"),
		"k8s_c0_victim_ns_uid-victim_01":    labelled(identity.LabelRestartCount, "01"),
		"k8s_c0_VICTIM_ns_uid-victim_1":     labelled(identity.LabelPodName, "VICTIM", identity.LabelRestartCount, "1"),
		"k8s_c0_victim_n.s_uid-victim_1":    labelled(identity.LabelPodNamespace, "n.s", identity.LabelRestartCount, "1"),
		"k8s_c_0_victim_ns_uid-victim_1":    labelled(identity.LabelContainerName, "c_0", identity.LabelRestartCount, "1"),
		"k8s_c0_victim_ns_uid-victim_" + strconv.Itoa(math.MaxInt32): labelled(identity.LabelRestartCount, strconv.Itoa(math.MaxInt32)),
	} {
		if identity.IsHolder([]string{name}, labels) {
			r.stranger(name, labels, false) // left by a killed agent, for an image with these labels
			continue
		}
		strangers = append(strangers, r.stranger(name, labels, true))
	}
	r.stranger("k8s_accounts_"+r.cfg.Node+"_beef", labelled(identity.LabelType, identity.TypeHolder), true) // which a user has started
	logged := dockertest.NewBuffer()
	klog.LogToStderr(false)
	klog.SetOutput(logged)
	defer klog.LogToStderr(true)
	sweeper, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sweeper.Containers.ObserveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		all, err := r.ObserveAll(t.Context())
		if err != nil || len(all) != 1 || len(all[victim.UID].Containers) != 1 || len(all[victim.UID].Sandboxes) != 1 {
			t.Errorf("all: %+v, %v", all, err)
		}
		o := r.observed(victim)
		if len(o.Containers) != 1 || o.Containers[0].ID != innocent || len(o.Sandboxes) != 1 || o.Grace != 7 || o.Name != "victim" {
			t.Errorf("the victim: %+v", o)
		}
	}
	if o, err := r.Observe(t.Context(), "../../etc"); err != nil || o.UID != "" {
		t.Errorf("a UID that is none: %+v, %v", o, err)
	}
	for _, id := range strangers {
		if in, err := r.Inspect(t.Context(), id); err != nil || !in.State.Running {
			t.Errorf("a stranger was touched: %+v, %v", in.Name, err)
		}
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "k8s_image_") {
		t.Errorf("the holder is left:\n%s", dump)
	}
	if got := strings.Count(logged.String(), "Ignoring a container with the labels of a pod"); got != 2*len(strangers) {
		t.Errorf("both agents log each stranger once: %d lines of %d strangers:\n%s", got, len(strangers), logged)
	}
	if !events {
		return
	}
	r.fake.Kill(innocent, 3, false)
	for uid := range changes { // the first events are of the victim's own start
		if uid != victim.UID && uid != "" {
			t.Fatalf("an event of pod %q", uid)
		}
		if r.container(victim, "c0").State == pod.Exited {
			return
		}
	}
	t.Error("the end of the victim's container was not seen")
}

// TestUpgradeAdopts: earlier agents set only the labels that they used. Their containers are still ours, and continue to run.
func TestUpgradeAdopts(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("old", []string{"pause"})
	c, err := r.API(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unsealed := func(creation convert.Creation, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		made, err := c.ContainerCreate(t.Context(), creation.Config, creation.HostConfig, nil, nil, creation.Name)
		if err == nil {
			err = c.ContainerStart(t.Context(), made.ID, container.StartOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	target, err := r.Target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sandbox := unsealed(convert.Sandbox(p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: p.Name}}, testImage, target))
	target.Hash = "5eed"
	id := unsealed(convert.Container(p, r.step(p, 0, sandbox), target))
	all, err := r.ObserveAll(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	o := all[p.UID]
	if len(o.Sandboxes) != 1 || !o.Sandboxes[0].Running || len(o.Containers) != 1 || o.Containers[0].ID != id || o.Containers[0].SandboxID != sandbox ||
		o.Containers[0].State != pod.Running || o.Containers[0].Hash != "5eed" {
		t.Errorf("%+v", o)
	}
	// Its history is also indistinguishable from this agent's.
	r.apply(p, r.step(p, 0, sandbox))
	if again := r.observed(p); len(again.Containers) != 1 || again.Containers[0].ID != id {
		t.Errorf("the step was done again: %+v", again.Containers)
	}
}

// TestVolumesAfterCrash: anonymous volumes of a killed agent's leftovers (a container that never started, a holder) are removed with them; named
// ones, and those of other containers, stay.
func TestVolumesAfterCrash(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	id := r.imageWith("winkube.test/volumes:1", &container.Config{Volumes: map[string]struct{}{"/data": {}, "/cache/": {}}})
	c, err := r.API(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ContainerCreate(t.Context(), &container.Config{Image: id}, &container.HostConfig{Binds: []string{"keep:/cache"}}, nil, nil, "foreign"); err != nil {
		t.Fatal(err)
	}
	others := r.fake.Volumes() // keep, and an anonymous one
	if len(others) != 2 {
		t.Fatalf("%q", others)
	}
	p := r.pod("data", []string{"pause"})
	sandbox := r.sandbox(p)
	r.image = pod.Image{ID: id, Ref: "docker://" + id}
	step := r.step(p, 0, sandbox)
	step.Inputs.Mounts = []pod.Mount{{Name: "cache", HostPath: r.dir, ContainerPath: "/cache"}}
	target, err := r.Target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	creation, err := convert.Container(p, step, target)
	if err != nil {
		t.Fatal(err)
	}
	left, err := r.Create(t.Context(), "create", creation.Name, creation.Config, creation.HostConfig)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.volumes(left); len(got) != 1 {
		t.Fatalf("a mount of the pod's takes the place of a volume of the image's: %q", got)
	}
	r.hold(identity.HoldFiles, id)

	next, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.Containers.ObserveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := next.Containers.Apply(t.Context(), p, step); err != nil {
		t.Fatal(err)
	}
	own := r.container(p, "c0").ID
	if own == left {
		t.Fatal("the leftover was started")
	}
	if got, want := r.fake.Volumes(), append(slices.Clone(others), r.volumes(own)...); len(got) != len(want) {
		t.Errorf("volumes %q, want %q", got, want)
	}
	for _, step := range []pod.Step{{Action: pod.StopContainer, ID: own}, {Action: pod.RemoveContainer, ID: own}} {
		if err := next.Containers.Apply(t.Context(), p, step); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.fake.Volumes(); !slices.Equal(got, others) {
		t.Errorf("volumes %q, want %q", got, others)
	}
}
