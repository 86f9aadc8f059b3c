package replay

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/record"
)

// TestEngineRoundTrip records the requests of the kubelet's own client for one sandbox, then replays the recording: requests and results are the
// same. A changed request is a deviation that names the field.
func TestEngineRoundTrip(t *testing.T) {
	for _, build := range []int{14393, 17763, 20348} {
		fake := dockertest.New(dockertest.Options{OS: "windows", Build: build})
		fake.AddImage(dockertest.Image{Names: []string{image}, Entrypoint: []string{"ping"}, Size: 1000, OS: "windows", OSVersion: fmt.Sprintf("10.0.%d.0", build)})
		r := record.New()
		first := lifeOf(t, fake, build, r, time.Second)
		scrubber := record.NewScrubber("win-1", []string{"winkube", image}, func(a string) bool { return strings.HasPrefix(a, "10.244.213.") })
		r.Describe(func(h *record.Header) { h.OS, h.Build, h.Engine, h.API = "windows", build, "20.10.24", "1.41" })
		h := New(r.Recording(scrubber))
		if second := lifeOf(t, h, build, record.New(), time.Second); second != first || first == "" {
			t.Errorf("build %d: saw\n%s\nand from the recording\n%s", build, first, second)
		}
		if d := append(h.Deviations(), h.Missing()...); len(d) > 0 {
			t.Errorf("build %d: %s", build, strings.Join(d, "\n"))
		}
		changed := New(r.Recording(scrubber))
		lifeOf(t, changed, build, record.New(), 7*time.Second)
		if d := strings.Join(append(changed.Deviations(), changed.Missing()...), "\n"); !strings.Contains(d, "/stop?t=7") || !strings.Contains(d, "/stop?t=1") {
			t.Errorf("build %d: another grace period is no deviation: %s", build, d)
		}
	}
}

// lifeOf starts, inspects and removes a container on an engine, and returns what it saw. grace is the time for the container
// to stop.
func lifeOf(t *testing.T, engine http.Handler, build int, r *record.Recorder, grace time.Duration) (seen string) {
	t.Helper()
	server := httptest.NewServer(engine)
	defer func() { server.CloseClientConnections(); server.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := docker.New(docker.Config{Host: "tcp://" + server.Listener.Addr().String(), Node: "winkube-record", InfraImage: image,
		Platform: pod.Platform{OS: "windows", Arch: "amd64", Build: build}})
	if err != nil {
		t.Fatal(err)
	}
	e.Client.Wrap(r.Transport)
	net := pod.EngineNetwork{Name: "winkube", Driver: "transparent", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.213.0/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.244.213.1")},
		Labels: map[string]string{network.LabelPods: "pods"}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "winkube-record", Namespace: "default", UID: "winkube-record-0000-0000"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "record", Image: image}}}}
	img, _, err := e.Images.Lookup(ctx, image)
	steps := []func() error{
		func() error { return err },
		func() error { return e.Networks.EnsureNetwork(ctx, net) },
		func() error {
			return e.Containers.Apply(ctx, p, pod.Step{Action: pod.StartContainer, Container: "record", Kind: "app",
				Inputs: &pod.Inputs{Image: img, Sandbox: &pod.SandboxInputs{Network: "winkube", Hostname: "winkube-record"}}})
		},
		func() error {
			o, err := e.Containers.Observe(ctx, p.UID)
			for _, c := range o.Containers {
				seen += fmt.Sprintf("%s %s %s %s %v\n", c.Name, c.ID, c.State, c.Image, c.Addresses)
				err = e.Containers.Apply(ctx, p, pod.Step{Action: pod.StopContainer, ID: c.ID, Grace: grace})
				if err == nil {
					err = e.Containers.Apply(ctx, p, pod.Step{Action: pod.RemoveContainer, ID: c.ID})
				}
			}
			return err
		},
		func() error { return e.Networks.RemoveNetwork(ctx, "winkube") },
	}
	for i, step := range steps {
		if err := step(); err != nil && grace == time.Second {
			t.Errorf("step %d: %v", i, err)
		}
	}
	return seen
}
