package e2e

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// Every way between each two nodes, of each family that the cluster has: pod to pod, pod to service, host to pod and pod to host.
func TestWays(t *testing.T) {
	s := newSpace(t)
	pods := map[*lab.Host]*v1.Pod{}
	for _, node := range cluster.Nodes {
		s.create(s.pod("web-"+node.Name, node, "serve", "8080"))
	}
	fronts, ports := map[*lab.Host][]string{}, map[*lab.Host]int{} // a service's addresses, and its port on each node
	policy := v1.IPFamilyPolicyPreferDualStack
	for _, node := range cluster.Nodes {
		service, err := client.CoreV1().Services(s.name).Create(t.Context(), &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "to-" + node.Name},
			Spec:       v1.ServiceSpec{Type: v1.ServiceTypeNodePort, IPFamilyPolicy: &policy, Selector: map[string]string{"app": "web-" + node.Name}, Ports: []v1.ServicePort{{Port: 8080}}},
		}, metav1.CreateOptions{})
		s.must(err)
		pods[node], fronts[node], ports[node] = s.ready("web-"+node.Name), service.Spec.ClusterIPs, int(service.Spec.Ports[0].NodePort)
	}
	families := 1
	if cluster.DualStack {
		families = 2
	}
	var table strings.Builder
	for _, from := range cluster.Nodes {
		for _, to := range cluster.Nodes {
			if n := len(pods[to].Status.PodIPs); n != families || len(fronts[to]) != families {
				t.Fatalf("pod on %s has %d addresses, its service %v; want %d", to.Name, n, fronts[to], families)
			}
			for i, ip := range pods[to].Status.PodIPs {
				inPod := func(address string) func(context.Context) error { return s.fromPod(from, pods[from], address, 8080) }
				for _, way := range []struct {
					name, address string
					ask           func(context.Context) error
				}{
					{"pod to pod", ip.IP, inPod(ip.IP)}, {"pod to service", fronts[to][i], inPod(fronts[to][i])},
					{"host to pod", ip.IP, s.fromHost(from, ip.IP)}, {"host to service", fronts[to][i], s.fromHost(from, fronts[to][i])},
				} {
					took := s.eventually(20*time.Second, fmt.Sprintf("%s, %s to %s", way.name, from.Name, to.Name), way.ask)
					fmt.Fprintf(&table, "%-16s %s to %s  %-24s after %.1f s\n", way.name, from.Name, to.Name, way.address, took.Seconds())
				}
			}
			took := s.eventually(20*time.Second, fmt.Sprintf("pod to host, %s to %s", from.Name, to.Name), s.fromPod(from, pods[from], to.Addr.String(), ports[to]))
			fmt.Fprintf(&table, "%-16s %s to %s  %-24s after %.1f s\n", "pod to host", from.Name, to.Name, to.Addr, took.Seconds())
		}
	}
	t.Logf("mode %s, %d nodes\n%s", cluster.NetworkMode, len(cluster.Nodes), table.String())
}

func (s *space) fromHost(node *lab.Host, address string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := ask(ctx, node, "http://"+net.JoinHostPort(address, "8080")+"/")
		return err
	}
}

// fromPod asks from inside a pod's network.
func (s *space) fromPod(node *lab.Host, pod *v1.Pod, address string, port int) func(context.Context) error {
	return func(ctx context.Context) error {
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		details, err := node.Engine().Inspect(ctx, id)
		if err != nil {
			return err
		}
		url := "http://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/"
		cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", details.State.Pid), "--", filepath.Join(cluster.Tools, "sample"), "get", url)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s from the pod on %s: %w: %s", url, node.Name, err, out)
		}
		return nil
	}
}
