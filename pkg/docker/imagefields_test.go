package docker

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/nat"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// everyField is an image that sets every field of a container's configuration, in addition to our labels.
func everyField(r *rig, victim *v1.Pod) *container.Config {
	timeout := 1 << 20
	return &container.Config{
		Hostname: "image", Domainname: "image", User: "77", AttachStdin: true, AttachStdout: true, AttachStderr: true, ExposedPorts: nat.PortSet{"22/tcp": {}},
		Tty: true, OpenStdin: true, StdinOnce: true, Env: []string{"A=image", "B=image"}, Cmd: []string{"pause", "image"}, ArgsEscaped: true, Image: "image",
		Healthcheck: &container.HealthConfig{Test: []string{"CMD-SHELL", "image"}, Interval: time.Second, Timeout: time.Second, StartPeriod: time.Second, StartInterval: time.Second, Retries: 9},
		//lint:ignore SA1019 images may still have what is deprecated
		Volumes: map[string]struct{}{"/image": {}}, WorkingDir: "/image", Entrypoint: []string{programPath}, NetworkDisabled: true, MacAddress: "02:42:00:00:00:01",
		OnBuild: []string{"RUN image"}, Labels: claims(r, victim), StopSignal: "SIGINT", StopTimeout: &timeout, Shell: []string{"image"},
	}
}

// TestImageFields: the effect of each field of an image on a container whose spec does not set it (bare), and on one that does (full). "-": no
// effect.
func TestImageFields(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	victim := r.pod("victim")
	id := r.fake.AddImage(dockertest.Image{Names: []string{"every"}, Config: everyField(r, victim)})
	plain := r.image
	inspect := func(image pod.Image, name string, full bool) container.InspectResponse {
		p := r.pod(name, []string{"pause", "spec"})
		sandbox := r.sandbox(p)
		r.image = image
		step := r.step(p, 0, sandbox)
		step.Inputs.Entrypoint, step.Inputs.Args = nil, nil
		if c := &p.Spec.Containers[0]; full {
			uid, signal := int64(1000), v1.SIGUSR1
			c.WorkingDir, c.SecurityContext, c.Lifecycle = "/spec", &v1.SecurityContext{RunAsUser: &uid}, &v1.Lifecycle{StopSignal: &signal}
			step.Inputs.Entrypoint, step.Inputs.Args = c.Command, c.Args
			step.Inputs.Env = []pod.Env{{Name: "A", Value: "spec"}}
			step.Inputs.Mounts = []pod.Mount{{HostPath: r.dir, ContainerPath: "/image"}}
		} else if image.ID == plain.ID {
			step.Inputs.Args = []string{"pause"} // the plain image has none
		}
		r.apply(p, step)
		in, err := r.Inspect(t.Context(), r.container(p, "c0").ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, label := range []string{identity.LabelPodName, identity.LabelPodUID, identity.LabelImageRef, identity.LabelSandboxID} {
			delete(in.Config.Labels, label) // differ from pod to pod; testImageSays checks them
		}
		in.Config.Image = ""
		return in
	}
	every := pod.Image{ID: id, Ref: plain.Ref}
	bare, full := inspect(every, "bare", false), inspect(every, "full", true)
	bareRef, fullRef := inspect(plain, "bare-ref", false), inspect(plain, "full-ref", true)
	want := map[string][2]string{
		"Hostname": {"-", "-"}, "Domainname": {"-", "-"}, "User": {`"77"`, "-"}, "AttachStdin": {"-", "-"}, "AttachStdout": {"-", "-"}, "AttachStderr": {"-", "-"},
		"ExposedPorts": {`{"22/tcp":{}}`, `{"22/tcp":{}}`}, "Tty": {"-", "-"}, "OpenStdin": {"-", "-"}, "StdinOnce": {"-", "-"},
		"Env": {`["A=image","B=image"]`, `["A=spec","B=image"]`}, "Cmd": {`["pause","image"]`, "-"}, "ArgsEscaped": {"-", "-"}, "Image": {"-", "-"},
		"Healthcheck": {`{"Test":["NONE"],"Interval":1000000000,"Timeout":1000000000,"StartPeriod":1000000000,"StartInterval":1000000000,"Retries":9}`,
			`{"Test":["NONE"],"Interval":1000000000,"Timeout":1000000000,"StartPeriod":1000000000,"StartInterval":1000000000,"Retries":9}`},
		"Volumes": {`{"/image":{}}`, `{"/image":{}}`}, "WorkingDir": {`"/image"`, "-"}, "Entrypoint": {"-", "-"}, "NetworkDisabled": {"-", "-"}, "MacAddress": {"-", "-"},
		"OnBuild": {"-", "-"}, "StopSignal": {`"SIGINT"`, "-"}, "StopTimeout": {"-", "-"}, "Shell": {"-", "-"}, "Labels": {"", ""},
	}
	fields := reflect.TypeFor[container.Config]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		expected, ok := want[name]
		if !ok {
			t.Errorf("field %s: the engine's client has a new one; see whether the engine takes it from images, and say so here and in docs/reference/images.md", name)
			continue
		}
		for j, pair := range [][2]container.InspectResponse{{bare, bareRef}, {full, fullRef}} {
			got, _ := json.Marshal(reflect.ValueOf(*pair[0].Config).Field(i).Interface())
			reference, _ := json.Marshal(reflect.ValueOf(*pair[1].Config).Field(i).Interface())
			if name == "Labels" {
				continue
			}
			if slices.Equal(got, reference) {
				got = []byte("-")
			}
			if string(got) != expected[j] {
				t.Errorf("%s in %s: %s, want %s", name, pair[0].Name, got, expected[j])
			}
		}
	}
	for label, value := range fullRef.Config.Labels {
		if full.Config.Labels[label] != value {
			t.Errorf("label %s: %q, want %q", label, full.Config.Labels[label], value)
		}
	}
	if len(full.Config.Labels) != len(fullRef.Config.Labels)+1 || full.Config.Labels["vendor"] != "kept" {
		t.Errorf("labels: %v", full.Config.Labels)
	}
	if volumes := func(in container.InspectResponse) (n int) {
		for _, m := range in.Mounts {
			if m.Name != "" {
				n++
			}
		}
		return n
	}; volumes(bare) != 1 || volumes(full) != 0 {
		t.Errorf("volumes: %+v; with a mount of the spec's there: %+v", bare.Mounts, full.Mounts)
	}
	if bare.State.Health != nil || len(bare.NetworkSettings.Ports) > 0 {
		t.Errorf("health %+v, ports %v", bare.State.Health, bare.NetworkSettings.Ports)
	}
	r.image = every
	if c := r.container(r.pod("bare"), "c0"); c.StopSignal != "SIGINT" {
		t.Errorf("stop signal: %+v", c)
	}
}

// TestImageArgsEscaped: on Windows an image may declare that its arguments are already one line, and the engine then applies that to the spec's too.
// It affects only the container's own command line.
func TestImageArgsEscaped(t *testing.T) {
	r := fakeRig(t, dockertest.Options{OS: "windows", Build: 17763}, nil)
	id := r.fake.AddImage(dockertest.Image{Names: []string{"every"}, Config: everyField(r, r.pod("victim"))})
	r.image = pod.Image{ID: id, Ref: "docker://" + id}
	p := r.pod("escaped", []string{"pause", "two words"})
	in, err := r.Inspect(t.Context(), r.run(p)[0])
	if err != nil || !in.Config.ArgsEscaped || !slices.Equal(in.Config.Cmd, p.Spec.Containers[0].Args) { //nolint:staticcheck // engines of Windows have it
		t.Errorf("%+v, %v", in.Config, err)
	}
	if o := r.observed(r.pod("victim")); o.UID != "" {
		t.Errorf("the victim: %+v", o)
	}
}
