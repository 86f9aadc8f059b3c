package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRouteConflict adds a foreign route in place of ours to the other node's pods. The Node reports it, its pods keep
// running, and the report ends when the route works again.
func TestRouteConflict(t *testing.T) {
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	of, err := client.CoreV1().Nodes().Get(t.Context(), other.Name, metav1.GetOptions{})
	s.must(err)
	ours, err := node.Exec(t.Context(), "ip", "route", "show", of.Spec.PodCIDR, "proto", "157")
	s.must(err)
	if ours == "" {
		t.Skipf("mode %s has no route of ours to conflict with", cluster.NetworkMode)
	}
	_, err = node.Exec(t.Context(), "ip", "route", "replace", of.Spec.PodCIDR, "via", cluster.Control.Addr.String())
	s.must(err)
	remove := func() error {
		_, err := node.Exec(context.Background(), "ip", "route", "del", of.Spec.PodCIDR, "proto", "boot")
		return err
	}
	s.Cleanup(func() { _ = remove() })
	condition := func(status v1.ConditionStatus, reason, says string) func(context.Context) error {
		return func(ctx context.Context) error {
			n, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range n.Status.Conditions {
				if c.Type == v1.NodeNetworkUnavailable && c.Status == status && c.Reason == reason && strings.Contains(c.Message, says) {
					return nil
				}
			}
			return fmt.Errorf("%+v", n.Status.Conditions)
		}
	}
	said := s.eventually(2*time.Minute, "the Node reports the conflict", condition(v1.ConditionTrue, "RouteConflict", of.Spec.PodCIDR+" via "+cluster.Control.Addr.String()+" is there"))
	meanwhile := s.pod("meanwhile", node, "sleep")
	meanwhile.Spec.NodeName = node.Name // the scheduler avoids such a node
	s.create(meanwhile)
	s.ready("meanwhile")
	s.must(remove())
	back := s.eventually(2*time.Minute, "the Node clears the report", condition(v1.ConditionFalse, "NetworkReady", ""))
	s.eventually(2*time.Minute, "the node accepts pods again", func(ctx context.Context) error {
		n, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeNetworkUnavailable }) {
			err = fmt.Errorf("%+v", n.Spec.Taints)
		}
		return err
	})
	again, err := node.Exec(t.Context(), "ip", "route", "show", of.Spec.PodCIDR, "proto", "157")
	if s.must(err); again != ours {
		t.Errorf("the route was %q, is %q", ours, again)
	}
	t.Logf("foreign route to %s: reported on the Node after %.1f s, cleared %.1f s after its removal", other.Name, said.Seconds(), back.Seconds())
}
