package docker

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
)

// TestHostIPComesLater: a pod whose hostIP the host does not have yet does not fail permanently; it starts once the host has it.
func TestHostIPComesLater(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.7")}
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.HostIPs = func() ([]netip.Addr, error) { return own, nil } })
	p := r.pod("late", []string{"pause"})
	p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: "192.0.2.100"}}
	step := pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: p.Name}}
	var apply *engine.ApplyError
	if err := r.Apply(t.Context(), p, step); !errors.As(err, &apply) || apply.Reason != engine.ReasonSandbox || !strings.Contains(apply.Message, "hostIP 192.0.2.100") {
		t.Fatalf("before: %v", err)
	}
	if o := r.observed(p); len(o.Sandboxes) > 0 {
		t.Fatalf("made all the same: %+v", o)
	}
	own = append(own, netip.MustParseAddr("192.0.2.100"))
	r.apply(p, step)
}
