package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/test/lab"
)

// bridged lets packets between pods of one node pass the rules of iptables.
const bridged = "net.bridge.bridge-nf-call-iptables"

// TestNetworkPolicy: kube-router enforces NetworkPolicies of clients that use a ClusterIP as it does for a pod's address,
// on the endpoint's node and on the other one, at both ends of the connection. It comes from its module, so the first
// build takes minutes: WINKUBE_KUBEROUTER=1.
func TestNetworkPolicy(t *testing.T) {
	if os.Getenv("WINKUBE_KUBEROUTER") == "" {
		t.Skip("set WINKUBE_KUBEROUTER=1 to build and run kube-router")
	}
	if mode := cluster.ProxyMode; mode != "connect" && mode != "auto" {
		t.Skip("needs a cluster with PROXY_MODE=connect or auto: a relay's connections come from the node")
	}
	s := newSpace(t)
	s.must(cluster.LoadKubeRouter(t.Context()))
	here := cluster.Nodes[0]
	for _, name := range []string{"server", "other"} {
		s.create(s.pod(name, here, "serve", "8080"))
	}
	clients := []string{"admitted", "stranger", "confined"}
	for _, node := range cluster.Nodes {
		for _, role := range clients {
			pod := s.pod(role+"-"+node.Name, node, "sleep")
			pod.Labels["role"] = role
			s.create(pod)
		}
	}
	addresses := map[string][]string{}
	for _, name := range []string{"server", "other"} {
		addresses[name] = []string{s.service(name, 8080) + ":80", s.ready(name).Status.PodIP + ":8080"}
	}
	for _, node := range cluster.Nodes {
		for _, role := range clients {
			s.ready(role + "-" + node.Name)
			for _, server := range []string{"server", "other"} {
				s.policyAllows(role+"-"+node.Name, addresses[server], true)
			}
		}
	}
	s.kubeRouter()
	s.policies()
	for _, node := range cluster.Nodes {
		for client, reaches := range map[string][2]bool{"admitted": {true, true}, "stranger": {false, true}, "confined": {true, false}} {
			s.policyAllows(client+"-"+node.Name, addresses["server"], reaches[0])
			s.policyAllows(client+"-"+node.Name, addresses["other"], reaches[1])
		}
	}
}

// policyAllows waits until a pod reaches each address, or none, and what it reaches sees the pod's own address.
func (s *space) policyAllows(from string, addresses []string, want bool) {
	s.Helper()
	own := s.get(from).Status.PodIP
	for _, address := range addresses {
		s.eventually(time.Minute, fmt.Sprintf("%s to %s: allowed %t", from, address, want), func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			out, err := cluster.Kubectl(ctx, "exec", "-n", s.name, from, "--", "/sample", "get", "http://"+address+"/client-ip")
			switch {
			case (err == nil) != want:
				return fmt.Errorf("answer %q, error %v", out, err)
			case err == nil && !strings.HasPrefix(strings.TrimSpace(out), own+":"):
				return fmt.Errorf("the server sees %q, want %s", strings.TrimSpace(out), own)
			case err != nil && !strings.Contains(err.Error()+out, "refused"): // kube-router rejects
				return fmt.Errorf("not rejected: %w", err)
			}
			return nil
		})
	}
}

// policies admit one role at the server, and let another role send only to the server.
func (s *space) policies() {
	s.Helper()
	selector := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	port := intstr.FromInt32(8080)
	in, out := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	for name, spec := range map[string]networkingv1.NetworkPolicySpec{
		"to-server": {PodSelector: *selector("app", "server"), PolicyTypes: in, Ingress: []networkingv1.NetworkPolicyIngressRule{{
			Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: selector("role", "admitted")}, {PodSelector: selector("role", "confined")}},
		}}},
		"from-confined": {PodSelector: *selector("role", "confined"), PolicyTypes: out, Egress: []networkingv1.NetworkPolicyEgressRule{{
			To: []networkingv1.NetworkPolicyPeer{{PodSelector: selector("app", "server")}},
		}}},
	} {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		_, err := client.NetworkingV1().NetworkPolicies(s.name).Create(s.Context(), policy, metav1.CreateOptions{})
		s.must(err)
	}
}

// kubeRouter runs kube-router's firewall in a pod on each node, and removes its rules at the end.
func (s *space) kubeRouter() {
	s.Helper()
	text, err := os.ReadFile("testdata/kube-router.yaml")
	s.must(err)
	rights := filepath.Join(s.TempDir(), "kube-router.yaml")
	s.must(os.WriteFile(rights, []byte(strings.ReplaceAll(string(text), "NAMESPACE", s.name)), 0o644))
	_, err = cluster.Kubectl(s.Context(), "apply", "-f", rights)
	s.must(err)
	s.Cleanup(func() {
		if _, err := cluster.Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", rights); err != nil {
			s.Error(err)
		}
	})
	for _, node := range cluster.Nodes {
		before, err := node.Exec(s.Context(), "sysctl", "-n", bridged)
		s.must(err)
		_, err = node.Exec(s.Context(), "sysctl", "-w", bridged+"=1")
		s.must(err)
		s.Cleanup(func() { s.withoutKubeRouter(node, strings.TrimSpace(before)) })
		pod := s.pod("kube-router-"+node.Name, node, "--run-firewall=true", "--run-router=false", "--run-service-proxy=false",
			"--hostname-override="+node.Name, "--service-cluster-ip-range="+lab.ServiceCIDR, "--v=1")
		pod.Spec.HostNetwork, pod.Spec.ServiceAccountName = true, "kube-router"
		c := &pod.Spec.Containers[0]
		c.Image = lab.KubeRouterImage
		c.SecurityContext = &v1.SecurityContext{Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_ADMIN", "NET_RAW"}}}
		mount := func(name, path string, source v1.VolumeSource) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: path, ReadOnly: name != "run"})
		}
		mount("programs", "/usr", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/usr"}})
		mount("alternatives", "/etc/alternatives", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/etc/alternatives"}})
		mount("run", "/run", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
		s.create(pod)
	}
	for _, node := range cluster.Nodes {
		s.ready("kube-router-" + node.Name)
	}
	s.Cleanup(func() {
		if s.Failed() {
			for _, node := range cluster.Nodes {
				s.Logf("kube-router of %s:\n%s", node.Name, s.logs("kube-router-"+node.Name))
			}
		}
	})
}

// withoutKubeRouter ends kube-router's pod on a node and removes what it leaves there: its chains and sets.
func (s *space) withoutKubeRouter(node *lab.Host, setting string) {
	ctx := context.Background()
	grace := int64(0)
	if err := client.CoreV1().Pods(s.name).Delete(ctx, "kube-router-"+node.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		s.Error(err)
	}
	s.eventually(time.Minute, "the end of kube-router on "+node.Name, func(ctx context.Context) error {
		return s.gone(ctx, "kube-router-"+node.Name)
	})
	for _, args := range [][]string{
		{"sysctl", "-w", bridged + "=" + setting},
		{"sh", "-c", "iptables-save | grep -v KUBE- | iptables-restore && ipset destroy"},
	} {
		if _, err := node.Exec(ctx, args...); err != nil {
			s.Error(err)
		}
	}
}
