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
	"github.com/winkube/winkube/test/output"
)

// Every path between each two nodes, for each address family of the cluster: pod to pod, pod to service, host to pod,
// host to service, and pod to a host's node port. The right pod responds.
func TestWays(t *testing.T) {
	s := newSpace(t)
	for _, node := range cluster.Nodes {
		s.create(s.pod("web-"+node.Name, node, "serve", "8080"))
	}
	var ends []end
	for _, node := range cluster.Nodes {
		ends = append(ends, s.end(node))
	}
	deadline := time.Now().Add(2 * time.Minute) // for all paths together
	var table strings.Builder
	for _, from := range ends {
		for _, to := range ends {
			for _, w := range s.ways(from, to) {
				patience := max(10*time.Second, time.Until(deadline))
				took := s.eventually(patience, fmt.Sprintf("%s, %s to %s", w.name, from.node.Name, to.node.Name), func(ctx context.Context) error {
					out, err := w.ask(ctx, "http://"+w.address+"/hostname")
					if got := strings.TrimSpace(out); err == nil && got != to.pod.Name {
						err = fmt.Errorf("%s answered at %s, want %s", got, w.address, to.pod.Name)
					}
					return err
				})
				fmt.Fprintf(&table, "%-16s %s to %s  %-28s after %.1f s\n", w.name, from.node.Name, to.node.Name, w.address, took.Seconds())
			}
		}
	}
	t.Logf("mode %s, %d nodes\n%s", cluster.NetworkMode, len(cluster.Nodes), table.String())
}

// end is one node with its pod and service. It has one address per family, always in the same order.
type end struct {
	node                 *lab.Host
	pod                  *v1.Pod
	pods, services, host []string
	nodePort             int
}

// end creates the service of a node's pod and waits for the pod.
func (s *space) end(node *lab.Host) end {
	s.Helper()
	policy := v1.IPFamilyPolicyPreferDualStack
	service, err := client.CoreV1().Services(s.name).Create(s.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "to-" + node.Name},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeNodePort, IPFamilyPolicy: &policy, Selector: map[string]string{"app": "web-" + node.Name}, Ports: []v1.ServicePort{{Port: 8080}}},
	}, metav1.CreateOptions{})
	s.must(err)
	known, err := client.CoreV1().Nodes().Get(s.Context(), node.Name, metav1.GetOptions{})
	s.must(err)
	e := end{node: node, pod: s.ready("web-" + node.Name), services: service.Spec.ClusterIPs, nodePort: int(service.Spec.Ports[0].NodePort)}
	for _, ip := range e.pod.Status.PodIPs {
		e.pods = append(e.pods, ip.IP)
	}
	for _, address := range known.Status.Addresses {
		if address.Type == v1.NodeInternalIP {
			e.host = append(e.host, address.Address)
		}
	}
	families := 1
	if cluster.DualStack {
		families = 2
	}
	for what, have := range map[string][]string{"pod": e.pods, "service": e.services, "host": e.host} {
		if len(have) != families {
			s.Fatalf("%s on %s has the addresses %v, want %d", what, node.Name, have, families)
		}
	}
	return e
}

type way struct {
	name, address string // including a port
	ask           func(ctx context.Context, url string) (string, error)
}

func (s *space) ways(from, to end) []way {
	inPod := func(ctx context.Context, url string) (string, error) { return s.fromPod(ctx, from, url) }
	onHost := func(ctx context.Context, url string) (string, error) { return ask(ctx, from.node, url) }
	var out []way
	for i := range to.pods {
		pod, service := net.JoinHostPort(to.pods[i], "8080"), net.JoinHostPort(to.services[i], "8080")
		host := net.JoinHostPort(to.host[i], strconv.Itoa(to.nodePort))
		out = append(out, way{"pod to pod", pod, inPod}, way{"pod to service", service, inPod}, way{"pod to host", host, inPod},
			way{"host to pod", pod, onHost}, way{"host to service", service, onHost})
	}
	return out
}

// fromPod sends a request from the network of an end's pod.
func (s *space) fromPod(ctx context.Context, from end, url string) (string, error) {
	_, id, _ := strings.Cut(from.pod.Status.ContainerStatuses[0].ContainerID, "://")
	details, err := from.node.Engine().Inspect(ctx, id)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", details.State.Pid), "--", filepath.Join(cluster.Tools, "sample"), "get", url)
	said, err := output.Of(cmd)
	if err != nil {
		return "", fmt.Errorf("%s from the pod on %s: %w: %s", url, from.node.Name, err, said)
	}
	return said.Stdout, nil
}
