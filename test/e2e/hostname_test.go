package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestHostNames: each host has the name of its Node, and so does a pod in the host's network.
func TestHostNames(t *testing.T) {
	s := newSpace(t)
	for _, node := range cluster.Nodes {
		name, err := node.Exec(t.Context(), "uname", "-n")
		if err != nil || strings.TrimSpace(name) != node.Name {
			t.Errorf("the host of %s is called %q (%v)", node.Name, name, err)
		}
		pod := s.pod("named-"+node.Name, node, "sleep")
		pod.Spec.HostNetwork = true
		s.create(pod)
		s.ready(pod.Name)
		s.eventually(time.Minute, "the pod's host name", func(ctx context.Context) error {
			out, err := cluster.Kubectl(ctx, "exec", "-n", s.name, pod.Name, "--", "/sample", "hostname")
			if err == nil && strings.TrimSpace(out) != node.Name {
				err = fmt.Errorf("got %q, want %s", out, node.Name)
			}
			return err
		})
	}
}
