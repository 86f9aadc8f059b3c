package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/go-connections/nat"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// claims are labels of an image that claim its containers as the newest attempt of the victim's container c0.
func claims(r *rig, victim *v1.Pod) map[string]string {
	out := map[string]string{"vendor": "kept"}
	for _, label := range identity.OwnLabels() {
		out[label] = "claimed"
	}
	for label, value := range map[string]string{
		identity.LabelNode: r.cfg.Node, identity.LabelPodUID: string(victim.UID), identity.LabelPodName: victim.Name, identity.LabelPodNamespace: victim.Namespace, identity.LabelType: identity.TypeContainer,
		identity.LabelContainerName: "c0", identity.LabelRestartCount: "999", identity.LabelKind: string(podspec.App), identity.LabelHostPorts: "2222=22/TCP", identity.LabelMessageRoot: "/",
		identity.LabelMessage: "etc/passwd", identity.LabelBoot: "another", identity.LabelGrace: "1", identity.LabelResources: "shares=2", identity.LabelUser: "0:0:", identity.LabelRecursive: "true",
	} {
		out[label] = value
	}
	return out
}

// imageWith adds an image of the test's program with config, and returns its id.
func (r *rig) imageWith(name string, config *container.Config) string {
	r.t.Helper()
	if r.fake != nil {
		config.Entrypoint = []string{programPath}
		return r.fake.AddImage(dockertest.Image{Names: []string{name}, Config: config})
	}
	changes := []string{`ENTRYPOINT ["` + programPath + `"]`}
	for key, value := range config.Labels {
		changes = append(changes, fmt.Sprintf("LABEL %s=%q", key, value))
	}
	for path := range config.Volumes {
		changes = append(changes, "VOLUME "+path)
	}
	for port := range config.ExposedPorts {
		changes = append(changes, "EXPOSE "+string(port))
	}
	for _, line := range config.Env {
		changes = append(changes, "ENV "+line)
	}
	if h := config.Healthcheck; h != nil {
		changes = append(changes, fmt.Sprintf(`HEALTHCHECK --interval=%s CMD ["%s"]`, h.Interval, strings.Join(h.Test[1:], `","`)))
	}
	for instruction, value := range map[string]string{"USER": config.User, "WORKDIR": config.WorkingDir} { // an import accepts no STOPSIGNAL before 23.0
		if value != "" {
			changes = append(changes, instruction+" "+value)
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		r.t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, data := range map[string][]byte{programPath[1:]: self, "data/from-image": []byte("x"), "tmp/keep": nil} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			r.t.Fatal(err)
		}
		_, _ = w.Write(data)
	}
	w.Close()
	c, err := r.API(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := c.ImageImport(r.t.Context(), image.ImportSource{Source: &archive, SourceName: "-"}, name, image.ImportOptions{Changes: changes})
	if err != nil {
		r.t.Fatal(err)
	}
	text, _ := io.ReadAll(answer)
	answer.Close()
	found, ok, err := r.Lookup(r.t.Context(), name)
	if err != nil || !ok {
		r.t.Fatalf("%v; the engine: %s", err, text)
	}
	return found.ID
}

// hold leaves a container like that of an agent killed while it read an image, and returns its id.
func (r *rig) hold(purpose, image string) string {
	r.t.Helper()
	name := identity.HolderName(purpose, r.cfg.Node, strings.TrimPrefix(image, "sha256:")[:12])
	labels := map[string]string{identity.LabelNode: r.cfg.Node, identity.LabelType: identity.TypeHolder}
	id, err := r.Create(r.t.Context(), "hold an image", name,
		&container.Config{Image: image, Entrypoint: []string{"/never-started"}, Labels: labels}, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// volumes are the anonymous volumes of a container.
func (r *rig) volumes(id string) (names []string) {
	r.t.Helper()
	in, err := r.Inspect(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range in.Mounts {
		if m.Name != "" {
			names = append(names, m.Name)
		}
	}
	return names
}

// hasVolume says whether the engine still has a volume.
func (r *rig) hasVolume(name string) bool {
	r.t.Helper()
	if r.fake != nil {
		return slices.Contains(r.fake.Volumes(), name)
	}
	c, err := r.API(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	_, err = c.VolumeInspect(r.t.Context(), name)
	if err != nil && !cerrdefs.IsNotFound(err) {
		r.t.Fatal(err)
	}
	return err == nil
}

// testImageSays uses an image with every label of ours, volumes, a health check and ports. Neither its pod nor a container for reading it counts as
// the victim's. Nothing of it is run or published besides the pod's own settings, and its volumes are removed with its containers.
func testImageSays(t *testing.T, r *rig) {
	victim := r.pod("victim", []string{"pause"})
	innocent := r.run(victim)[0]
	id := r.imageWith("winkube.test/hostile:1", &container.Config{
		Labels: claims(r, victim), Volumes: map[string]struct{}{"/data": {}}, ExposedPorts: nat.PortSet{"22/tcp": {}}, Env: []string{"FROM=image"},
		Healthcheck: &container.HealthConfig{Test: []string{"CMD", programPath, "exit", "1"}, Interval: time.Second}, WorkingDir: "/tmp", StopSignal: "SIGKILL",
	})
	r.cfg.InfraImage, r.image = id, pod.Image{ID: id, Ref: "docker://" + id}
	r.rebuild(ordinary)
	if _, err := r.ObserveAll(t.Context()); err != nil { // the first call removes what a former agent left
		t.Fatal(err)
	}
	holder := r.hold(identity.HoldFiles, id)
	hostile := r.pod("hostile", []string{"pause"})
	own := r.run(hostile)[0]
	sandbox := r.observed(hostile).Sandboxes[0]
	if len(sandbox.HostPorts) > 0 || sandbox.Runtime != "" || sandbox.Attempt != 0 {
		t.Errorf("the sandbox of such an image: %+v", sandbox)
	}
	next, err := New(r.cfg) // one that knows only the engine's answers
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]doors{"the agent": r.doors, "the next one": open(next)} {
		o, err := e.Observe(t.Context(), victim.UID)
		if err != nil || len(o.Sandboxes) != 1 || len(o.Containers) != 1 || o.Containers[0].ID != innocent || o.Containers[0].Attempt != 0 ||
			o.Containers[0].State != pod.Running || o.Grace != 7 {
			t.Errorf("%s sees of the victim: %+v, %v", name, o, err)
		}
	}
	seesAll := func(name string, e doors) {
		t.Helper()
		all, err := e.ObserveAll(t.Context())
		if err != nil || len(all) != 2 || len(all[victim.UID].Containers) != 1 || len(all[hostile.UID].Containers) != 1 || all[hostile.UID].Containers[0].ID != own {
			t.Errorf("%s sees in all: %+v, %v", name, all, err)
		}
	}
	seesAll("the agent", r.doors)
	var volumes []string
	for _, id := range []string{holder, sandbox.ID, own} {
		in, err := r.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, label := range identity.OwnLabels() {
			if value, ok := in.Config.Labels[label]; !ok || value == "claimed" || value == "999" || strings.HasSuffix(value, "victim") {
				t.Errorf("%s: label %s is %q, %v: the image's", in.Name, label, value, ok)
			}
		}
		if in.Config.Labels["vendor"] != "kept" {
			t.Errorf("%s: a label that is not ours is gone", in.Name)
		}
		if h := in.State.Health; h != nil && h.Status != container.NoHealthcheck || !slices.Equal(in.Config.Healthcheck.Test, []string{"NONE"}) {
			t.Errorf("%s: the engine checks its health: %+v, %+v", in.Name, h, in.Config.Healthcheck)
		}
		for port, bindings := range in.NetworkSettings.Ports {
			if len(bindings) > 0 {
				t.Errorf("%s: port %s is published at %v", in.Name, port, bindings)
			}
		}
		found := r.volumes(id)
		if len(found) != 1 {
			t.Errorf("%s: volumes %q, want one for /data", in.Name, found)
		}
		volumes = append(volumes, found...)
	}
	seesAll("the next one", open(next)) // and removes the holder
	for _, step := range []pod.Step{{Action: pod.StopContainer, ID: own, Grace: time.Second}, {Action: pod.StopSandbox, ID: sandbox.ID},
		{Action: pod.RemoveContainer, ID: own}, {Action: pod.RemoveSandbox, ID: sandbox.ID}} {
		r.apply(hostile, step)
	}
	for _, name := range volumes {
		if r.hasVolume(name) {
			t.Errorf("volume %s has outlived its container", name)
		}
	}
}
