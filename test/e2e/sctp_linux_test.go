package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/pkg/iptables/sctptest"
	"github.com/winkube/winkube/test/lab"
)

// TestSCTPService: pods serve SCTP by raw packets, and clients everywhere reach them through a Service, also while the
// proxy is away. An association ends with its endpoint, and the rules with the Service.
func TestSCTPService(t *testing.T) {
	s := newSpace(t)
	near, far, outside := cluster.Nodes[0], cluster.Nodes[1], cluster.Control
	for name, node := range map[string]*lab.Host{"near": near, "far": far} {
		s.servesSCTP(name, node)
	}
	s.create(s.pod("client", near, "serve", "8080"))
	clientNetwork := s.network(s.ready("client"), near)
	service := s.sctpService()
	clusterIP := netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80)
	nodePort := netip.AddrPortFrom(far.Addr, uint16(service.Spec.Ports[0].NodePort))

	ways := map[string]struct {
		network string
		to      netip.AddrPort
	}{
		"pod": {clientNetwork, clusterIP}, "host": {"/run/netns/" + near.Namespace(), clusterIP}, "outside": {"/run/netns/" + outside.Namespace(), nodePort},
		"host at its node port": {"/run/netns/" + far.Namespace(), nodePort},
	}
	reached := func(when string) {
		t.Helper()
		for way, w := range ways {
			s.eventually(time.Minute, way+" meets both pods "+when, func(context.Context) error { return meetsBoth(w.network, w.to) })
		}
	}
	reached("at first")

	s.must(near.Process("proxy").Kill9(t.Context()))
	s.must(far.Process("proxy").Kill9(t.Context()))
	reached("without a proxy")
	s.must(near.Process("proxy").Start(t.Context()))
	s.must(far.Process("proxy").Start(t.Context()))
	reached("with the next proxy")

	var open *sctptest.Association
	s.eventually(time.Minute, "an association with the other node's pod", func(context.Context) error {
		return withinNetwork(clientNetwork, func() error {
			a, err := sctptest.Dial(clusterIP)
			if err != nil {
				return err
			}
			if a.Name != "far" {
				a.Close()
				return errors.New("it is with the other pod")
			}
			open = a
			t.Cleanup(a.Close)
			return nil
		})
	})
	s.must(open.Send())
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "far", metav1.DeleteOptions{}))
	s.eventually(time.Minute, "the association ends with its endpoint", func(context.Context) error {
		if err := open.Send(); err == nil {
			return errors.New("it is open")
		}
		return nil
	})

	_, err := client.CoreV1().Services(s.name).Patch(t.Context(), "sctp", types.MergePatchType, []byte(`{"spec":{"externalTrafficPolicy":"Local"}}`), metav1.PatchOptions{})
	s.must(err)
	s.eventually(time.Minute, "a node without an endpoint is silent towards clients elsewhere", func(context.Context) error {
		if got := meets("/run/netns/"+outside.Namespace(), nodePort); got != "silent" {
			return errors.New(got)
		}
		return nil
	})
	if got := meets("/run/netns/"+far.Namespace(), nodePort); got != "near" {
		t.Errorf("its own programs meet %s, want the pod elsewhere", got)
	}

	s.must(client.CoreV1().Services(s.name).Delete(t.Context(), "sctp", metav1.DeleteOptions{}))
	s.eventually(time.Minute, "the rules are gone", func(ctx context.Context) error {
		for _, node := range cluster.Nodes {
			if saved, err := node.Exec(ctx, "iptables-save"); err != nil || strings.Contains(saved, "WINKUBE-SCTP") {
				return fmt.Errorf("%s: %v\n%s", node.Name, err, saved)
			}
		}
		return nil
	})
}

// servesSCTP starts a pod that answers SCTP at port 9090 with its name.
func (s *space) servesSCTP(name string, node *lab.Host) {
	s.Helper()
	pod := s.pod(name, node, "serve", "8080")
	pod.Labels["app"] = "sctp"
	s.create(pod)
	pod = s.ready(name)
	s.must(withinNetwork(s.network(pod, node), func() error {
		sctptest.Serve(s.T, name, netip.AddrPortFrom(netip.MustParseAddr(pod.Status.PodIP), 9090))
		return nil
	}))
}

// network returns the file of a pod's network namespace.
func (s *space) network(pod *v1.Pod, node *lab.Host) string {
	s.Helper()
	for _, details := range s.made(pod, node) {
		if details.State.Pid > 0 {
			return fmt.Sprintf("/proc/%d/ns/net", details.State.Pid)
		}
	}
	s.Fatalf("no container of pod %s runs", pod.Name)
	return ""
}

func (s *space) sctpService() *v1.Service {
	s.Helper()
	made, err := client.CoreV1().Services(s.name).Create(s.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "sctp"}, Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeNodePort, Selector: map[string]string{"app": "sctp"},
		Ports: []v1.ServicePort{{Protocol: v1.ProtocolSCTP, Port: 80, TargetPort: intstr.FromInt(9090)}}}}, metav1.CreateOptions{})
	s.must(err)
	return made
}

// meets opens an association from a network, and returns who answers, "refused", "silent" or an error.
func meets(network string, to netip.AddrPort) (got string) {
	err := withinNetwork(network, func() error {
		a, err := sctptest.Dial(to)
		if err == nil {
			got = a.Name
			a.Close()
		}
		return err
	})
	switch {
	case errors.Is(err, sctptest.ErrSilent):
		return "silent"
	case errors.Is(err, sctptest.ErrRefused):
		return "refused"
	case err != nil:
		return err.Error()
	}
	return got
}

// meetsBoth fails unless both pods answer within some attempts, and nothing else.
func meetsBoth(network string, to netip.AddrPort) error {
	seen := map[string]bool{}
	for range 30 {
		got := meets(network, to)
		if got != "near" && got != "far" {
			return errors.New(got)
		}
		if seen[got] = true; len(seen) == 2 {
			return nil
		}
	}
	return fmt.Errorf("met only %v", seen)
}
