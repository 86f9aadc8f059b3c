package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/winkube/winkube/test/lab"
)

const (
	namespace = metav1.NamespaceDefault
	nodePort  = "30080"
	staticPod = "static-web"
)

// suite holds the samples of build/samples by name.
type suite struct {
	cluster *lab.Cluster
	client  kubernetes.Interface
}

func newSuite(c *lab.Cluster) (*suite, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	return &suite{c, client}, nil
}

// Apply deploys the samples: objects with kubectl, and the static pod's manifest in node1's directory.
func Apply(ctx context.Context, c *lab.Cluster) error {
	dir := filepath.Join(c.Root, "build/samples")
	data, err := os.ReadFile(filepath.Join(dir, "static", staticPod+".yaml"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Nodes[0].Dir("manifests", staticPod+".yaml"), data, 0o644); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "apply", "-f", dir)
	return err
}

// ready returns the checks that only need the API: nodes and pods.
func (s *suite) ready() []Check {
	var checks []Check
	for _, node := range s.cluster.Nodes {
		checks = append(checks, Check{"node Ready", node.Name, func(ctx context.Context) (string, error) { return s.nodeReady(ctx, node.Name) }})
	}
	for _, name := range []string{"iis", "my-secret-pod", "my-configmap-pod", "my-hostpath-volume-pod", "my-empty-dir-pod", staticPod + "-" + s.cluster.Nodes[0].Name} {
		checks = append(checks, Check{"pod " + name + " Running", "", func(ctx context.Context) (string, error) {
			return s.podsReady(ctx, namespace, "metadata.name="+name, "", 1)
		}})
	}
	for _, set := range []struct {
		name, namespace, selector string
		want                      int
	}{
		{"daemonset my-daemonset Running", namespace, "app=foo", len(s.cluster.Nodes)},
		{"deployment hello Running", namespace, "app=hello", 3},
		{"deployment coredns Running", metav1.NamespaceSystem, "k8s-app=kube-dns", 2},
	} {
		checks = append(checks, Check{set.name, "", func(ctx context.Context) (string, error) {
			return s.podsReady(ctx, set.namespace, "", set.selector, set.want)
		}})
	}
	return checks
}

func (s *suite) nodeReady(ctx context.Context, name string) (string, error) {
	node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady && condition.Status == v1.ConditionTrue {
			return fmt.Sprintf("%s, %s, pods %s", node.Status.NodeInfo.KubeletVersion, node.Status.NodeInfo.ContainerRuntimeVersion, node.Spec.PodCIDR), nil
		}
	}
	return "", fmt.Errorf("node %s is not Ready", name)
}

// podsReady requires exactly want pods, all of them Running and Ready.
func (s *suite) podsReady(ctx context.Context, namespace, fields, labels string, want int) (string, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields, LabelSelector: labels})
	if err != nil {
		return "", err
	}
	if len(list.Items) != want {
		return "", fmt.Errorf("%d pods, want %d", len(list.Items), want)
	}
	var seen []string
	for i := range list.Items {
		if err := podReady(&list.Items[i]); err != nil {
			return "", err
		}
		seen = append(seen, list.Items[i].Status.PodIP+" on "+list.Items[i].Spec.NodeName)
	}
	return strings.Join(seen, ", "), nil
}

// podReady returns nil if the pod is Running and Ready, otherwise what is missing.
func podReady(pod *v1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady && condition.Status == v1.ConditionTrue && pod.Status.Phase == v1.PodRunning {
			return nil
		}
	}
	why := string(pod.Status.Phase)
	if pod.Spec.NodeName == "" {
		why = "not scheduled"
	}
	if pod.Status.Reason != "" {
		why += ", " + pod.Status.Reason + ": " + pod.Status.Message
	}
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			why += fmt.Sprintf(", %s waits: %s %s", status.Name, waiting.Reason, waiting.Message)
		}
		if ended := status.State.Terminated; ended != nil {
			why += fmt.Sprintf(", %s ended: %s %d %s", status.Name, ended.Reason, ended.ExitCode, ended.Message)
		}
	}
	return fmt.Errorf("pod %s on %s: %s", pod.Name, pod.Spec.NodeName, why)
}

// checks returns the checks on the running samples.
func (s *suite) checks(ctx context.Context) ([]Check, error) {
	clients, err := s.clientPods(ctx)
	if err != nil {
		return nil, err
	}
	iis, err := s.client.CoreV1().Pods(namespace).Get(ctx, "iis", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	service, err := s.client.CoreV1().Services(namespace).Get(ctx, "iis", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	other := s.cluster.Nodes[0]
	if iis.Spec.NodeName == other.Name {
		other = s.cluster.Nodes[1]
	}
	var checks []Check
	for _, node := range s.cluster.Nodes {
		checks = append(checks,
			Check{"HTTP by ClusterIP, from the host", node.Name, s.fromHost(node, service.Spec.ClusterIP)},
			Check{"HTTP by NodePort, from the host", node.Name, s.fromHost(node, net.JoinHostPort(node.Addr.String(), nodePort))},
		)
	}
	far := clients[other.Name]
	checks = append(checks,
		Check{"HTTP by pod address, from a pod on the other node", other.Name, s.fromPod(far, iis.Status.PodIP)},
		Check{"HTTP by ClusterIP, from a pod on the other node", other.Name, s.fromPod(far, service.Spec.ClusterIP)},
		Check{"HTTP by NodePort, from a pod on the other node", other.Name, s.fromPod(far, net.JoinHostPort(other.Addr.String(), nodePort))},
		Check{"HTTP by service name, from a pod on the other node", other.Name, s.fromPod(far, "iis.default.svc."+lab.DNSDomain)},
		Check{"deployment answers by NodePort from all 3 pods", other.Name, s.spread(other)},
	)
	for _, node := range s.cluster.Nodes {
		for _, proto := range []string{"udp", "tcp"} {
			checks = append(checks, Check{"service name resolved over " + strings.ToUpper(proto) + " in a pod", node.Name,
				s.execWant(clients[node.Name], service.Spec.ClusterIP, "/sample", "resolve", "iis", "--proto="+proto)})
		}
	}
	checks = append(checks, s.valueChecks()...)
	return append(checks,
		Check{"kubectl logs -f", iis.Spec.NodeName, func(ctx context.Context) (string, error) { return s.followLogs(ctx, iis) }},
		Check{"kubectl exec -it", iis.Spec.NodeName, func(ctx context.Context) (string, error) { return s.interactive(ctx, iis) }},
	), nil
}

// valueChecks test what pods see of Secrets, ConfigMaps and volumes.
func (s *suite) valueChecks() []Check {
	return []Check{
		{"Secret in the environment", "", s.execWant("my-secret-pod", "USERNAME=admin PASSWORD=1f2d1e2e67df", "/bin/sh", "-c", "env")},
		{"Secret as a volume", "", s.execWant("my-secret-pod", "admin", "/sample", "cat", "/etc/secret/username")},
		{"ConfigMap in the environment", "", s.execWant("my-configmap-pod", "EXAMPLE_PROPERTY_1=hello EXAMPLE_PROPERTY_2=world", "/sample", "env")},
		{"ConfigMap as a volume", "", s.execWant("my-configmap-pod", "world", "/sample", "cat", "/etc/config/example.property.2")},
		{"hostPath", "", s.execWant("my-hostpath-volume-pod", "NAME=", "/sample", "cat", "/etc/foo/os-release")},
		{"several emptyDirs", "", s.execWant("my-empty-dir-pod", "in-cache in-scratch", "/bin/sh", "-c",
			"write /cache/f in-cache; write /scratch/f in-scratch; cat /cache/f /scratch/f")},
	}
}

// clientPods returns the name of the DaemonSet's pod by node.
func (s *suite) clientPods(ctx context.Context) (map[string]string, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=foo"})
	if err != nil {
		return nil, err
	}
	pods := map[string]string{}
	for _, pod := range list.Items {
		pods[pod.Spec.NodeName] = pod.Name
	}
	for _, node := range s.cluster.Nodes {
		if pods[node.Name] == "" {
			return nil, errors.New("my-daemonset has no pod on " + node.Name)
		}
	}
	return pods, nil
}
