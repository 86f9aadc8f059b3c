package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/test/lab"
)

// If the engine publishes no ports, as on networks without port mappings, the kubelet serves hostPorts itself. After a
// kill it serves them again within a second, without the API server. Events name the pods that existed when the network
// changed.
func TestHostPortsWithoutEngine(t *testing.T) {
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("before", node, "serve", "8080"))
	s.ready("before")

	const unpublished = "e2e-internal" // an internal network: the engine does not publish its ports
	s.must(node.Engine().CreateInternal(t.Context(), unpublished, "10.199.0.0/24"))
	env, args := node.ExtraEnv["kubelet"], node.ExtraArgs["kubelet"]
	node.ExtraEnv["kubelet"] = append(env[:len(env):len(env)], "CONTAINER_NETWORK="+unpublished)
	node.ExtraArgs["kubelet"] = append(args[:len(args):len(args)], "--network-mode=external", "--pod-interfaces=engine")
	t.Cleanup(func() {
		node.ExtraEnv["kubelet"], node.ExtraArgs["kubelet"] = env, args
		if err := node.Process("kubelet").Restart(context.Background()); err != nil {
			t.Error(err)
		}
		s.eventually(60*time.Second, "the network of this test is gone", func(ctx context.Context) error {
			return node.Engine().RemoveNetwork(ctx, unpublished)
		})
	})
	s.must(node.Process("kubelet").Restart(t.Context()))
	s.eventually(time.Minute, "containers on the old network are named", func(ctx context.Context) error {
		_, err := s.event(ctx, "before", "PodsOnOtherNetwork", unpublished)
		return errors.Join(err, nodeEvent(ctx, node, "PodsOnOtherNetwork", s.name+"/before"))
	})

	web := s.pod("web", node, "serve", "8080")
	web.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 18081}, {ContainerPort: 9, HostPort: 18081, Protocol: v1.ProtocolSCTP}}
	s.create(web)
	s.ready("web")
	front := net.JoinHostPort(node.Addr.String(), "18081")
	answers := func(ctx context.Context) error { _, err := ask(ctx, other, "http://"+front+"/"); return err }
	took := s.eventually(time.Minute, "the hostPort answers another host", answers)
	t.Logf("the hostPort answers another host %.1f s after the pod is Ready", took.Seconds())
	s.told("web", "HostPortNotServed", "18081/SCTP: protocol SCTP cannot be relayed")

	restore := sync.OnceValue(func() error { return cluster.RestoreAPIServer(context.Background()) })
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
	s.must(cluster.Control.Process("kube-apiserver").Kill9(t.Context()))
	s.must(node.Process("kubelet").Kill9(t.Context()))
	s.must(node.Process("kubelet").Ensure(t.Context()))
	took = s.eventually(time.Minute, "served again without the API server", answers)
	t.Logf("after kill -9, without the API server, the hostPort answers %.2f s after the start of the next kubelet", took.Seconds())
	s.must(restore())
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	s.eventually(2*time.Minute, "nothing listens when the pod is gone", func(ctx context.Context) error {
		if answers(ctx) == nil {
			return errors.New("the port still answers")
		}
		return nil
	})
}

// A pod may use the host's port 80 although services also use port 80, in any order, without affecting them. It is served at
// each of the host's addresses.
func TestHostPortBesideServices(t *testing.T) {
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("web", node, "serve", "8080"))
	early := s.service("web", 8080)
	const second = "172.30.0.111"
	_, err := node.Exec(t.Context(), "ip", "addr", "add", second+"/24", "dev", "eth0")
	s.must(err)
	t.Cleanup(func() { _, _ = node.Exec(context.Background(), "ip", "addr", "del", second+"/24", "dev", "eth0") })
	ingress := s.pod("ingress", node, "serve", "8081")
	ingress.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8081, HostPort: 80}}
	s.create(ingress)
	s.ready("web")
	s.ready("ingress")
	late, err := client.CoreV1().Services(s.name).Create(t.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(8080)}}}}, metav1.CreateOptions{})
	s.must(err)
	for _, want := range []struct {
		from     *lab.Host
		at, name string
	}{
		{node, early, "web"}, {node, late.Spec.ClusterIP, "web"}, {other, early, "web"}, {other, late.Spec.ClusterIP, "web"},
		{node, node.Addr.String(), "ingress"}, {other, node.Addr.String(), "ingress"}, {node, "127.0.0.1", "ingress"}, {other, second, "ingress"},
	} {
		s.eventually(time.Minute, fmt.Sprintf("%s answers %s at %s", want.name, want.from.Name, want.at), func(ctx context.Context) error {
			out, err := ask(ctx, want.from, "http://"+want.at+"/hostname")
			if got := strings.TrimSpace(out); err == nil && got != want.name {
				err = fmt.Errorf("%s answered", got)
			}
			return err
		})
	}
}

// A pod with hostNetwork may listen on all addresses at port 80 although services use port 80, in any order, and again
// while connections to them are open. Each is served at its own address.
func TestHostNetworkBesideServices(t *testing.T) {
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("web", other, "serve", "8080"))
	s.ready("web")
	services := []string{s.service("web", 8080)}
	s.eventually(time.Minute, "the service answers", func(ctx context.Context) error {
		_, err := ask(ctx, node, "http://"+services[0]+"/hostname")
		return err
	})
	if metrics, err := ask(t.Context(), node, "http://127.0.0.1:10249/metrics"); err != nil || strings.Contains(metrics, "kubeproxy_relay_fronts_by_lookup 0\n") {
		s.must(err)
		t.Skip("this kernel does not allow our program for socket lookups: see the proxy's log")
	}
	check := func(when string) {
		t.Helper()
		for _, from := range cluster.Nodes {
			for _, addr := range services {
				s.eventually(time.Minute, fmt.Sprintf("%s: the service answers %s at %s", when, from.Name, addr), func(ctx context.Context) error {
					out, err := ask(ctx, from, "http://"+addr+"/hostname")
					if got := strings.TrimSpace(out); err == nil && got != "web" {
						err = fmt.Errorf("%s answered", got)
					}
					return err
				})
			}
			s.eventually(time.Minute, fmt.Sprintf("%s: the pod with hostNetwork answers %s", when, from.Name), func(ctx context.Context) error {
				out, err := ask(ctx, from, "http://"+node.Addr.String()+"/env")
				if err == nil && !strings.Contains(out, "WHO=ingress") {
					err = fmt.Errorf("another answered: %s", out)
				}
				return err
			})
		}
	}
	ingress := func(name string) {
		t.Helper()
		pod := s.pod(name, node, "serve", "80")
		pod.Spec.HostNetwork = true
		pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "WHO", Value: "ingress"}}
		s.create(pod)
		s.ready(name)
	}
	ingress("first")
	check("the service first")
	late, err := client.CoreV1().Services(s.name).Create(t.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(8080)}}}}, metav1.CreateOptions{})
	s.must(err)
	services = append(services, late.Spec.ClusterIP)
	check("the pod first")
	s.must(within(node, func() error {
		for _, addr := range services {
			conn, err := net.Dial("tcp", net.JoinHostPort(addr, "80"))
			if err != nil {
				return err
			}
			s.Cleanup(func() { _ = conn.Close() })
		}
		return nil
	}))
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "first", metav1.DeleteOptions{}))
	s.eventually(60*time.Second, "the pod is gone", func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods(s.name).Get(ctx, "first", metav1.GetOptions{}); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	ingress("again")
	check("again, with connections open")
	if n := s.get("again").Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the pod was restarted %d times: %s", n, s.logs("again"))
	}
}

// nodeEvent finds an Event of a node by reason and a part of its message.
func nodeEvent(ctx context.Context, node *lab.Host, reason, says string) error {
	list, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node.Name})
	if err != nil {
		return err
	}
	for _, event := range list.Items {
		if event.Reason == reason && strings.Contains(event.Message, says) {
			return nil
		}
	}
	return fmt.Errorf("%s has no event %s with %q", node.Name, reason, says)
}
