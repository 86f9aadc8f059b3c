package docker

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
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
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestEveryLabelIsSealed: no label of ours can be forgotten, and nothing is made but by requestCreate, which seals.
func TestEveryLabelIsSealed(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name != "create.go" && (strings.Contains(string(text), ".ContainerCreate(") || strings.Contains(string(text), "/containers/create")) {
			t.Errorf("%s makes containers by itself; only requestCreate seals them", name)
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
				if label, _ := strconv.Unquote(value.Value); !slices.Contains(ownLabels, label) {
					t.Errorf("%s: %s is missing in ownLabels", name, spec.Names[0].Name)
				}
			}
			return true
		})
	}
	c := container.Config{Labels: map[string]string{LabelNode: "n", "other": "x"}}
	sealed := seal(&c)
	if len(c.Labels) != 2 || len(sealed.Labels) != len(ownLabels)+1 || sealed.Labels[LabelNode] != "n" || sealed.Labels["other"] != "x" {
		t.Errorf("%v of %v", sealed.Labels, c.Labels)
	}
}

// stranger makes a container as somebody with access to the engine does, and returns its id.
func (r *rig) stranger(name string, labels map[string]string, start bool) string {
	r.t.Helper()
	c, err := r.api(r.t.Context())
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

// TestStrangers: containers that others have made with labels of ours, by an image or by hand. They are no attempt of anybody's, give no pod of
// their own, and are left alone; the pods and the agent go on.
func TestStrangers(t *testing.T) {
	for _, events := range []bool{false, true} {
		t.Run("events "+strconv.FormatBool(events), func(t *testing.T) { testStrangers(t, events) })
	}
}

func testStrangers(t *testing.T, events bool) {
	r := fakeRig(t, dockertest.Options{}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
	proper := owned{uid: victim.UID, namespace: "ns", pod: "victim", container: "c0", attempt: 999}.name()
	strangers := []string{}
	for name, labels := range map[string]map[string]string{
		"happy_turing":                      good, // docker run of an image with all labels
		"k8s_c0_victim_ns_uid-victim_998":   good,
		"k8s_c0_victim_ns_uid-other_999":    good,
		proper + "_x":                       good,
		"k8s_image_" + r.cfg.Node + "_c0de": labelled(LabelType, typeHolder),
		"holder":                            labelled(LabelType, typeHolder),
		"k8s_c0_victim_ns_uid-victim_7":     labelled(LabelType, "", LabelRestartCount, "7"),
		"k8s_POD_victim_ns_uid-victim_8":    labelled(LabelContainerName, sandboxName, LabelRestartCount, "8"),
		"k8s_c0_victim_ns_uid-victim_9":     labelled(LabelType, typeSandbox, LabelRestartCount, "9"),
		"k8s_c0_victim_ns_.._1":             labelled(LabelPodUID, "..", LabelRestartCount, "1"),
		"slash":                             labelled(LabelPodUID, "../../etc"),
		"k8s_c0_victim_ns_uid-victim_-1":    labelled(LabelRestartCount, "-1"),
		"k8s_c0_victim_ns_uid-victim_01":    labelled(LabelRestartCount, "01"),
		"k8s_c0_VICTIM_ns_uid-victim_1":     labelled(LabelPodName, "VICTIM", LabelRestartCount, "1"),
		"k8s_c0_victim_n.s_uid-victim_1":    labelled(LabelPodNamespace, "n.s", LabelRestartCount, "1"),
		"k8s_c_0_victim_ns_uid-victim_1":    labelled(LabelContainerName, "c_0", LabelRestartCount, "1"),
		"k8s_c0_victim_ns_uid-victim_" + strconv.Itoa(math.MaxInt32): labelled(LabelRestartCount, strconv.Itoa(math.MaxInt32)),
	} {
		if isHolder([]string{name}, labels) {
			r.stranger(name, labels, false) // what an agent that was killed left of an image that says all this
			continue
		}
		strangers = append(strangers, r.stranger(name, labels, true))
	}
	r.stranger("k8s_accounts_"+r.cfg.Node+"_beef", labelled(LabelType, typeHolder), true) // which somebody has started by hand
	r.sweptHolders.Store(false)
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
		if in, err := r.inspect(t.Context(), id); err != nil || !in.State.Running {
			t.Errorf("a stranger was touched: %+v, %v", in.Name, err)
		}
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "k8s_image_") {
		t.Errorf("the holder is left:\n%s", dump)
	}
	if len(r.strangers) != len(strangers) {
		t.Errorf("%d are told of, want %d: %v", len(r.strangers), len(strangers), r.strangers)
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

// TestUpgradeAdopts: an agent before this one set only the labels that it used. What it left is ours as before, and runs on.
func TestUpgradeAdopts(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("old", []string{"pause"})
	c, err := r.api(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unsealed := func(creation Creation, err error) string {
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
	target, err := r.target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sandbox := unsealed(ConvertSandbox(p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: p.Name}}, testImage, target))
	target.Hash = "5eed"
	id := unsealed(Convert(p, r.step(p, 0, sandbox), target))
	all, err := r.ObserveAll(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	o := all[p.UID]
	if len(o.Sandboxes) != 1 || !o.Sandboxes[0].Running || len(o.Containers) != 1 || o.Containers[0].ID != id || o.Containers[0].SandboxID != sandbox ||
		o.Containers[0].State != pod.Running || o.Containers[0].Hash != "5eed" {
		t.Errorf("%+v", o)
	}
	// Nor is anything that it ran told apart from what this agent would have seen.
	r.apply(p, r.step(p, 0, sandbox))
	if again := r.observed(p); len(again.Containers) != 1 || again.Containers[0].ID != id {
		t.Errorf("the step was done again: %+v", again.Containers)
	}
}

// TestVolumesAfterCrash: anonymous volumes of what an agent left that was killed (a container that never started, a holder) go with it; named
// ones, and those of others' containers, stay.
func TestVolumesAfterCrash(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	id := r.imageWith("winkube.test/volumes:1", &container.Config{Volumes: map[string]struct{}{"/data": {}, "/cache/": {}}})
	c, err := r.api(t.Context())
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
	target, err := r.target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	creation, err := Convert(p, step, target)
	if err != nil {
		t.Fatal(err)
	}
	left, err := r.requestCreate(t.Context(), "create", creation)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.volumes(left); len(got) != 1 {
		t.Fatalf("a mount of the pod's takes the place of a volume of the image's: %q", got)
	}
	if _, err := r.hold(t.Context(), holdFiles, id); err != nil {
		t.Fatal(err)
	}

	next, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.ObserveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := next.Apply(t.Context(), p, step); err != nil {
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
		if err := next.Apply(t.Context(), p, step); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.fake.Volumes(); !slices.Equal(got, others) {
		t.Errorf("volumes %q, want %q", got, others)
	}
}

// FuzzOwned: whatever labels say, only what this agent would have named so is believed, and it can be part of a path.
func FuzzOwned(f *testing.F) {
	f.Add(typeContainer, "0a1b-2c", "web-0", "shop", "app", "3", "k8s_app_web-0_shop_0a1b-2c_3")
	f.Add(typeSandbox, "0a1b", "web-0", "shop", sandboxName, "0", "/k8s_POD_web-0_shop_0a1b_0_17a2")
	f.Add(typeContainer, "victim", "web-0", "shop", "app", "999", "happy_turing")
	f.Add(typeHolder, "victim", "web-0", "shop", "app", "999", "k8s_image_n_0123456789ab")
	f.Add(typeContainer, "../x", "web-0", "shop", "app", "-1", "k8s_app_web-0_shop_../x_-1")
	e := &Engine{cfg: Config{Node: "n"}}
	f.Fuzz(func(t *testing.T, kind, uid, name, namespace, c, attempt, engineName string) {
		labels := map[string]string{LabelNode: "n", LabelType: kind, LabelPodUID: uid, LabelPodName: name, LabelPodNamespace: namespace, LabelContainerName: c, LabelRestartCount: attempt}
		o, err := e.own([]string{engineName}, labels)
		if err != nil {
			return
		}
		if kind != typeContainer && kind != typeSandbox || (kind == typeSandbox) != (c == sandboxName) || string(o.uid) != uid {
			t.Errorf("believed: %+v of %v", o, labels)
		}
		p := &v1.Pod{}
		p.UID, p.Name, p.Namespace = o.uid, name, namespace
		if made := containerName(p, c, o.attempt); !strings.HasPrefix(strings.TrimPrefix(engineName, "/"), made) || o.attempt < 0 || o.attempt >= math.MaxInt32 {
			t.Errorf("%s is believed to be %s", engineName, made)
		}
		if strings.ContainsAny(uid+name+namespace+c, `/\`) || !filepath.IsLocal(uid) || uid == "." {
			t.Errorf("believed: %+v", o)
		}
		if _, err := e.own([]string{"x" + engineName}, labels); err == nil || errors.Is(err, errForeign) {
			t.Errorf("another name: %v", err)
		}
	})
}
