package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/test/lab"
)

// interfaces sets the --pod-interfaces of one node's kubelet until the test ends, while no other test's pods are on the
// node.
func (s *space) interfaces(node *lab.Host, by string) {
	s.Helper()
	args := node.ExtraArgs["kubelet"]
	node.ExtraArgs["kubelet"] = append(args[:len(args):len(args)], "--pod-interfaces="+by)
	s.Cleanup(func() { node.ExtraArgs["kubelet"] = args })
	s.must(node.Process("kubelet").Restart(s.Context()))
}

// ports returns the interfaces that the node's kubelet created, by container, as recorded in their aliases.
func ports(ctx context.Context, node *lab.Host) (map[string]podlink.Record, error) {
	out, err := node.Exec(ctx, "ip", "-o", "link", "show", "type", "veth")
	if err != nil {
		return nil, err
	}
	found := map[string]podlink.Record{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		_, rest, _ := strings.Cut(line, ": ")
		name, _, _ := strings.Cut(rest, "@")
		if !podlink.IsPort(name) {
			continue
		}
		_, alias, _ := strings.Cut(line, "alias ")
		r, done := podlink.ParseAlias(strings.TrimSpace(alias))
		if !done {
			return nil, fmt.Errorf("half made: %s", line)
		}
		found[r.Container] = r
	}
	return found, nil
}

// portsOf requires a port for each of the node's pods, except onEngine pods on the engine's network, and no others.
func portsOf(ctx context.Context, node *lab.Host, namespace string, onEngine int) error {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return err
	}
	have, err := ports(ctx, node)
	if err != nil {
		return err
	}
	addrs := map[string]bool{}
	for _, r := range have {
		addrs[r.Addrs[0].String()] = true
	}
	missing := 0
	for _, p := range pods.Items {
		if !addrs[p.Status.PodIP] {
			missing++
		}
	}
	if len(addrs) != len(have) || missing != onEngine || len(have) != len(pods.Items)-onEngine {
		return fmt.Errorf("%d pods, ports have %v", len(pods.Items), slices.Sorted(maps.Keys(addrs)))
	}
	return nil
}

// TestPodInterfaces: pods on the engine's network survive the change to interfaces created by the kubelet, and can
// connect to new pods in both directions. A kubelet that is killed meanwhile leaks nothing. Externally restarted
// sandboxes and deleted interfaces are restored.
func TestPodInterfaces(t *testing.T) {
	if cluster.KubeletInterfaces() || cluster.NetworkMode == "cni" {
		t.Skip("changes from interfaces of the engine to the kubelet's: set POD_INTERFACES=engine")
	}
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("before", node, "serve", "8080"))
	s.create(s.pod("far", other, "serve", "8080"))
	s.ready("far")
	before := s.ready("before")

	s.Cleanup(func() { // remove the node's pods first: the engine does not manage their addresses
		_ = client.CoreV1().Pods(s.name).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		s.eventually(60*time.Second, "the kubelet's interfaces are gone", func(ctx context.Context) error {
			have, err := ports(ctx, node)
			if err == nil && len(have) > 0 {
				err = fmt.Errorf("%v are left", have)
			}
			return err
		})
		s.must(node.Process("kubelet").Restart(context.Background()))
	})
	s.interfaces(node, "kubelet")
	web := s.pod("web", node, "serve", "8080")
	web.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 18083}}
	s.create(web)
	after := s.ready("web")
	url := func(p *v1.Pod) string { return "http://" + p.Status.PodIP + ":8080/" }
	for name, from := range map[string]*lab.Host{"its node": node, "another node": other} {
		for _, p := range []*v1.Pod{before, after} {
			s.eventually(time.Minute, name+" reaches "+p.Name, func(ctx context.Context) error { // its server listens after it is Ready
				_, err := ask(ctx, from, url(p))
				return err
			})
		}
	}
	for _, from := range []*v1.Pod{before, after} {
		for _, to := range []*v1.Pod{before, after, s.get("far")} {
			s.eventually(time.Minute, from.Name+" reaches "+to.Name, func(ctx context.Context) error {
				_, err := inPod(ctx, node, s.sandboxOf(node, from), url(to))
				return err
			})
		}
	}
	answers := func(ctx context.Context) error {
		got, err := ask(ctx, other, "http://"+node.Addr.String()+":18083/client-ip")
		if err == nil && !strings.HasPrefix(got, other.Addr.String()+":") {
			err = fmt.Errorf("the pod sees %s, want %s", got, other.Addr)
		}
		return err
	}
	s.eventually(time.Minute, "the hostPort answers", answers)
	s.must(node.Process("kubelet").Kill9(t.Context()))
	s.must(answers(t.Context())) // without the kubelet
	s.must(node.Process("kubelet").Start(t.Context()))
	s.hostPortWithoutPause(node, answers)
	if now := s.get("before"); now.Status.PodIP != before.Status.PodIP || now.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod that was there was %v and is %v", before.Status, now.Status)
	}
	s.must(portsOf(t.Context(), node, s.name, 1))

	s.killedWhileConnecting(node)
	s.damagedInterface(node, after)
	s.restartedSandbox(node, after)
	s.eventually(time.Minute, "the hostPort answers", answers)
}

// hostPortWithoutPause asks until the node's new kubelet is ready: it keeps the rules that it finds.
func (s *space) hostPortWithoutPause(node *lab.Host, answers func(context.Context) error) {
	s.Helper()
	s.eventually(time.Minute, "the kubelet is ready", func(ctx context.Context) error {
		if err := answers(ctx); err != nil {
			s.Errorf("the hostPort while the kubelet starts: %v", err)
		}
		_, err := ask(ctx, node, "http://127.0.0.1:10248/healthz")
		return err
	})
}

// inPod requests a URL from a container's network.
func inPod(ctx context.Context, node *lab.Host, id, url string) (string, error) {
	details, err := node.Engine().Inspect(ctx, id)
	if err != nil {
		return "", err
	}
	return node.Exec(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", details.State.Pid), cluster.Tools+"/sample", "get", url)
}

// killedWhileConnecting kills the kubelet while pods are created and deleted, and deletes some while it is dead.
func (s *space) killedWhileConnecting(node *lab.Host) {
	s.Helper()
	const rounds, pods = 3, 3
	for round := range rounds {
		for i := range pods {
			s.create(s.pod(fmt.Sprintf("p%d-%d", round, i), node, "serve", "8080"))
		}
		s.eventually(time.Minute, "a new pod has an interface", func(ctx context.Context) error {
			have, err := ports(ctx, node)
			if err == nil && len(have) < 2+round {
				err = fmt.Errorf("%d interfaces", len(have))
			}
			return err
		})
		s.must(node.Process("kubelet").Kill9(s.Context()))
		if round > 0 {
			s.must(client.CoreV1().Pods(s.name).Delete(s.Context(), fmt.Sprintf("p%d-0", round-1), metav1.DeleteOptions{}))
		}
		s.must(node.Process("kubelet").Ensure(s.Context()))
	}
	s.allReady(3 * time.Minute)
	s.eventually(60*time.Second, "interfaces and pods agree", func(ctx context.Context) error { return portsOf(ctx, node, s.name, 1) })
}

// damagedInterface deletes a pod's interface: it is recreated with the same addresses, and no container restarts.
func (s *space) damagedInterface(node *lab.Host, p *v1.Pod) {
	s.Helper()
	_, err := node.Exec(s.Context(), "ip", "link", "del", podlink.PortName(s.sandboxOf(node, p)))
	s.must(err)
	took := s.eventually(time.Minute, "the pod answers again", func(ctx context.Context) error {
		_, err := ask(ctx, node, "http://"+p.Status.PodIP+":8080/")
		return err
	})
	s.Logf("a deleted interface is back after %.2f s", took.Seconds())
	if now := s.get(p.Name); now.Status.ContainerStatuses[0].RestartCount != p.Status.ContainerStatuses[0].RestartCount {
		s.Errorf("%s was restarted", p.Name)
	}
	s.told(p.Name, "NetworkReconnected", "")
}

// restartedSandbox restarts a sandbox externally, which gives it a new namespace: the pod's containers are recreated
// there.
func (s *space) restartedSandbox(node *lab.Host, before *v1.Pod) {
	s.Helper()
	s.must(node.Engine().Restart(s.Context(), s.sandboxOf(node, before)))
	s.eventually(time.Minute, "the containers are in the new network", func(ctx context.Context) error {
		now, err := client.CoreV1().Pods(s.name).Get(ctx, before.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.Status.ContainerStatuses[0].ContainerID == before.Status.ContainerStatuses[0].ContainerID {
			return errors.New("the container is still the one in the former namespace")
		}
		if err := isReady(now); err != nil {
			return err
		}
		_, err = ask(ctx, node, "http://"+now.Status.PodIP+":8080/")
		return err
	})
	s.eventually(60*time.Second, "interfaces and pods agree", func(ctx context.Context) error { return portsOf(ctx, node, s.name, 1) })
}
