package e2e

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/registry"
)

// TestHostileImageFields: what the engine merges from an image that sets every field into a container whose spec sets
// nothing (bare), and into one that sets what it can (full). Two pods with the same specs and a plain image show the
// rest. docs/reference/security.md lists the fields; docker.TestImageFields expects the same of the fake engine.
func TestHostileImageFields(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	images := newRegistry(t, node, 5994, registry.Token)
	plain, _ := images.add("public/plain:1")
	every, _ := images.addWith("public/every:1", map[string]any{
		"Hostname": "image", "Domainname": "image.example", "User": "77", "AttachStdin": true, "AttachStdout": true, "AttachStderr": true,
		"ExposedPorts": map[string]any{"22/tcp": map[string]any{}}, "Tty": true, "OpenStdin": true, "StdinOnce": true, "Env": []string{"A=image", "B=image"},
		"Cmd": []string{"sleep", "1h"}, "Healthcheck": map[string]any{"Test": []string{"CMD", "/sample", "fail"}, "Interval": 1_000_000_000}, "ArgsEscaped": true,
		"Volumes": map[string]any{"/image": map[string]any{}}, "WorkingDir": "/image", "NetworkDisabled": true, "MacAddress": "02:00:00:00:00:77",
		"OnBuild": []string{"RUN /sample fail"}, "StopSignal": "SIGINT", "StopTimeout": 7, "Shell": []string{"/sample"}, "Labels": map[string]any{"vendor": "kept"},
	})
	start := func(name, image string, full bool) map[string]any {
		p := s.pod(name, node, "sleep")
		p.Spec.Hostname = "same"
		c := &p.Spec.Containers[0]
		c.Image = image
		switch {
		case full:
			uid := int64(1000)
			c.Command, c.Args, c.WorkingDir, c.SecurityContext = []string{"/sample", "sleep"}, []string{"2h"}, "/spec", &v1.SecurityContext{RunAsUser: &uid}
			c.Env = append(c.Env, v1.EnvVar{Name: "A", Value: "spec"})
		case image == every:
			c.Command, c.Args = nil, nil
		}
		s.create(p)
		id := strings.TrimPrefix(s.ready(name).Status.ContainerStatuses[0].ContainerID, "docker://")
		details, err := node.Engine().Inspect(t.Context(), id)
		s.must(err)
		if details.HostConfig.PublishAllPorts {
			t.Errorf("%s publishes the image's ports", name)
		}
		return details.Config
	}
	both := func(value string) [2]string { return [2]string{value, value} }
	want := map[string][2]string{ // of the fields that differ from the plain image's, in bare and full; "-": no difference
		"User": {`"77"`, "-"}, "ExposedPorts": both(`{"22/tcp":{}}`), "Cmd": {`["sleep","1h"]`, "-"}, "Volumes": both(`{"/image":{}}`),
		"WorkingDir": {`"/image"`, "-"}, "StopSignal": both(`"SIGINT"`),
	}
	for i, full := range []bool{false, true} {
		name := []string{"bare", "full"}[i]
		got, reference := start(name, every, full), start(name+"-plain", plain, full)
		keys := map[string]bool{}
		for key := range maps.Keys(got) {
			keys[key] = true
		}
		for key := range maps.Keys(want) {
			keys[key] = true
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if slices.Contains([]string{"Image", "Labels", "Env", "Healthcheck"}, key) {
				continue // differ from pod to pod, or are checked below
			}
			has, plain := text(got[key]), text(reference[key])
			if has == plain {
				has = "-"
			}
			expected := "-"
			if w, ok := want[key]; ok {
				expected = w[i]
			}
			if has != expected {
				t.Errorf("%s in %s: %s, want %s; with a plain image %s", key, name, has, expected, plain)
			}
		}
		health, _ := got["Healthcheck"].(map[string]any)
		if test := text(health["Test"]); test != `["NONE"]` {
			t.Errorf("the health check of %s is %s", name, test)
		}
		env, first := text(got["Env"]), []string{`"A=image"`, `"A=spec"`}
		if !strings.Contains(env, first[i]) || strings.Contains(env, first[1-i]) || !strings.Contains(env, `"B=image"`) {
			t.Errorf("the environment of %s is %s", name, env)
		}
	}
}

func text(value any) string {
	out, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
