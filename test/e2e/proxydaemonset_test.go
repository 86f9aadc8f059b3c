package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// proxyPods selects the pods of build/kubernetes/proxy-daemonset.yaml.
const proxyPods = "app.kubernetes.io/name=winkube-proxy"

// podKubeconfig is what kubeadm's ConfigMap kube-proxy has: the API server's address, and the files of a service account.
const podKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    server: https://%s:6443
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
- name: default
  context: {cluster: default, user: default}
current-context: default
`

// daemonSet is the proxy in pods, in place of the hosts' proxies.
type daemonSet struct {
	*space
	manifest string
	ends     []end
	began    time.Time
}

// TestProxyDaemonSet: our manifests run the proxy in pods in place of the hosts' proxies, as the guide says. Services go
// on being served, also one that is new. A node with rules of kube-proxy gets an Event and a row of the doctor, the
// other node none. Without the manifests, the hosts' proxies serve again.
func TestProxyDaemonSet(t *testing.T) {
	if cluster.NetworkMode != "host-gateway" || cluster.ProxyMode != "" {
		t.Skip("the manifests have the default modes")
	}
	d := &daemonSet{space: newSpace(t), manifest: filepath.Join(cluster.Root, "build/kubernetes/proxy-daemonset.yaml"), began: time.Now()}
	for _, node := range cluster.Nodes {
		d.create(d.pod("web-"+node.Name, node, "serve", "8080"))
	}
	for _, node := range cluster.Nodes {
		d.ends = append(d.ends, d.end(node))
	}
	d.serves("the hosts' proxies")
	d.leaveRules(cluster.Nodes[0])
	t.Cleanup(d.back)
	d.apply()
	for _, node := range cluster.Nodes {
		d.must(node.Process("proxy").Stop(t.Context()))
	}
	d.label("winkube.io/proxy=daemonset")
	d.podsReady()
	d.serves("the proxies in pods")
	d.create(d.pod("new", cluster.Nodes[1], "serve", "8080"))
	d.ready("new")
	address := d.service("new", 8080)
	for _, node := range cluster.Nodes {
		d.eventually(time.Minute, "a new Service at "+node.Name, func(ctx context.Context) error {
			_, err := ask(ctx, node, "http://"+address+"/")
			return err
		})
	}
	d.unbroken(address)
	d.warned()
	d.back()
	d.serves("the hosts' proxies again")
}

// serves waits until each host and pod reaches each Service, by cluster IP and node port.
func (d *daemonSet) serves(who string) {
	d.Helper()
	for _, from := range d.ends {
		for _, to := range d.ends {
			for _, w := range d.ways(from, to) {
				took := d.eventually(2*time.Minute, fmt.Sprintf("%s: %s, %s to %s", who, w.name, from.node.Name, to.node.Name), func(ctx context.Context) error {
					out, err := w.ask(ctx, "http://"+w.address+"/hostname")
					if got := strings.TrimSpace(out); err == nil && got != to.pod.Name {
						err = fmt.Errorf("%s answered at %s, want %s", got, w.address, to.pod.Name)
					}
					return err
				})
				if took > time.Second {
					d.Logf("%s: %s, %s to %s after %.1f s", who, w.name, from.node.Name, to.node.Name, took.Seconds())
				}
			}
		}
	}
}

// leaveRules leaves rules on a host as kube-proxy does, but for an address that no Service has, and without the jump
// that leads to them.
func (d *daemonSet) leaveRules(node *lab.Host) {
	d.Helper()
	table := func(ctx context.Context, args ...string) error {
		_, err := node.Exec(ctx, append([]string{"iptables-nft", "-w", "5", "-t", "nat"}, args...)...)
		return err
	}
	d.Cleanup(func() {
		ctx := context.Background()
		if err := table(ctx, "-F", "KUBE-SERVICES"); err != nil {
			d.Error(err)
		}
		if err := table(ctx, "-X", "KUBE-SERVICES"); err != nil {
			d.Error(err)
		}
	})
	d.must(table(d.Context(), "-N", "KUBE-SERVICES"))
	d.must(table(d.Context(), "-A", "KUBE-SERVICES", "-d", "192.0.2.1/32", "-p", "tcp", "--dport", "80", "-j", "RETURN"))
}

// apply loads the image and applies the manifests. No pod starts before Nodes have the label.
func (d *daemonSet) apply() {
	d.Helper()
	ctx := d.Context()
	version, err := os.ReadFile(filepath.Join(cluster.Root, "hack/VERSION"))
	d.must(err)
	d.must(cluster.LoadProxy(ctx, "winkube/proxy:"+strings.TrimSpace(string(version))))
	_, err = client.CoreV1().ConfigMaps("kube-system").Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Data: map[string]string{"kubeconfig.conf": fmt.Sprintf(podKubeconfig, cluster.Control.Addr)}}, metav1.CreateOptions{})
	d.must(err)
	d.kubectl(ctx, "apply", "-f", d.manifest)
	if cluster.Engine == "" { // Debian's, 20.10, does not know CAP_BPF
		d.kubectl(ctx, "-n", "kube-system", "patch", "daemonset", "winkube-proxy", "--patch-file", filepath.Join(filepath.Dir(d.manifest), "without-bpf-patch.yaml"))
	}
}

func (d *daemonSet) kubectl(ctx context.Context, args ...string) {
	d.Helper()
	out, err := cluster.Kubectl(ctx, args...)
	if err != nil {
		d.Fatal(err)
	}
	d.Logf("$ kubectl %s\n%s", strings.Join(args, " "), out)
}

// label labels the nodes.
func (d *daemonSet) label(label string) {
	d.Helper()
	for _, node := range cluster.Nodes {
		d.kubectl(context.Background(), "label", "node", node.Name, label)
	}
}

// podsReady waits for one Ready pod on each node, none of which has restarted.
func (d *daemonSet) podsReady() {
	d.Helper()
	took := d.eventually(3*time.Minute, "a proxy's pod Ready on each node", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: proxyPods})
		if err != nil {
			return err
		}
		nodes := map[string]bool{}
		for i := range pods.Items {
			if err := isReady(&pods.Items[i]); err != nil {
				return err
			}
			nodes[pods.Items[i].Spec.NodeName] = true
		}
		if len(nodes) != len(cluster.Nodes) || len(pods.Items) != len(nodes) {
			return fmt.Errorf("%d pods on nodes %v", len(pods.Items), nodes)
		}
		return nil
	})
	for _, node := range cluster.Nodes {
		d.eventually(time.Minute, "the proxy healthy on "+node.Name, func(ctx context.Context) error {
			_, err := ask(ctx, node, "http://127.0.0.1:10256/healthz")
			return err
		})
	}
	d.Logf("pods Ready after %.1f s", took.Seconds())
}

// unbroken sends requests to a Service for some seconds from each node, each by a new connection. None may be lost.
func (d *daemonSet) unbroken(address string) {
	d.Helper()
	for _, node := range cluster.Nodes {
		pod := d.pod("watch-"+node.Name, node, "watch", "http://"+address+"/", "10s")
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
		d.create(pod)
	}
	for _, node := range cluster.Nodes {
		d.ended("watch-"+node.Name, v1.PodSucceeded, 2*time.Minute)
		if said := strings.TrimSpace(d.logs("watch-" + node.Name)); !regexp.MustCompile(`^[1-9]\d* requests, 0 lost$`).MatchString(said) {
			d.Errorf("%s: requests through the proxy in a pod:\n%s", node.Name, said)
		}
	}
	pods, err := client.CoreV1().Pods("kube-system").List(d.Context(), metav1.ListOptions{LabelSelector: proxyPods})
	d.must(err)
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount > 0 {
				d.Errorf("%s on %s has restarted %d times", pod.Name, pod.Spec.NodeName, status.RestartCount)
			}
		}
	}
}

// warned checks that the proxy, also from its pod, and the doctor name the rules of leaveRules, on that node alone.
func (d *daemonSet) warned() {
	d.Helper()
	const trace = "1 rule of iptables-nft"
	d.eventually(time.Minute, "an Event KubeProxyInTheWay", func(ctx context.Context) error {
		for i, node := range cluster.Nodes {
			list, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=KubeProxyInTheWay,involvedObject.name=" + node.Name})
			if err != nil {
				return err
			}
			var said []string
			for _, e := range list.Items {
				if !e.LastTimestamp.Time.Before(d.began.Truncate(time.Second)) { // not of an earlier test
					said = append(said, e.Message)
				}
			}
			if ruled := i == 0; ruled && (len(said) != 1 || !strings.Contains(said[0], trace)) || !ruled && len(said) > 0 {
				return fmt.Errorf("%s has %q", node.Name, said)
			}
		}
		return nil
	})
	node := cluster.Nodes[0]
	said, err := node.Exec(d.Context(), cluster.Binary("kubelet"), "doctor", "--node-ip="+node.Addr.String(), "--docker-endpoint=unix://"+node.EngineSocket())
	if err == nil || !strings.Contains(said, trace) || !strings.Contains(said, "kube-proxy --cleanup") { // it fails because it finds a fault
		d.Errorf("the doctor does not report %q (%v):\n%s", trace, err, said)
	}
}

// back removes the manifests, and starts the hosts' proxies once the pods are gone: both listen at the same ports. Done
// again, it changes nothing.
func (d *daemonSet) back() {
	d.Helper()
	ctx := context.Background()
	if d.Failed() {
		out, err := cluster.Kubectl(ctx, "-n", "kube-system", "logs", "-l", proxyPods, "--tail=60", "--prefix")
		d.Logf("logs of the proxies' pods (%v):\n%s", err, out)
	}
	d.label("winkube.io/proxy-")
	d.kubectl(ctx, "delete", "--ignore-not-found", "-f", d.manifest)
	d.kubectl(ctx, "-n", "kube-system", "delete", "--ignore-not-found", "configmap", "kube-proxy")
	d.eventually(2*time.Minute, "the proxies' pods gone", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: proxyPods})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
	for _, node := range cluster.Nodes {
		d.must(node.Process("proxy").Start(ctx))
	}
}
