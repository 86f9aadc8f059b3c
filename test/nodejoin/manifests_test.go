package nodejoin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/winkube/winkube/pkg/nodejoin"
	"github.com/winkube/winkube/test/output"
)

// TestManifestsRealAPIServer applies build/kubernetes as the guide says. A Node has one proxy by its label: kubeadm's, ours as a service, or ours in a pod.
// The pod's token may do what a proxy needs and nothing else.
func TestManifestsRealAPIServer(t *testing.T) {
	if os.Getenv("WINKUBE_E2E") == "" {
		t.Skip("WINKUBE_E2E=1 runs it, after make up has built the control plane")
	}
	c := startControl(t)
	const dir = "../../build/kubernetes"
	c.apply("testdata/kube-proxy.yaml")
	c.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--patch-file", filepath.Join(dir, "kube-proxy-patch.yaml"))
	for range 2 { // also where it is applied already
		c.kubectl("apply", "-k", dir)
	}
	for name, label := range map[string]string{"upstream": "", "service": "true", "pod": "daemonset"} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelOSStable: "linux"}}}
		if label != "" {
			node.Labels[nodejoin.ProxyLabel] = label
		}
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitProxies("kube-proxy on upstream, winkube-proxy on pod")
	c.kubectl("-n", "kube-system", "patch", "daemonset", "winkube-proxy", "--patch-file", filepath.Join(dir, "without-bpf-patch.yaml"))
	c.checkPodRights()
}

// kubectl runs it as an administrator.
func (c *control) kubectl(args ...string) {
	c.Helper()
	said, err := output.Of(exec.CommandContext(c.Context(), filepath.Join(tools, "kubectl"), append([]string{"--kubeconfig=" + c.path("admin.conf")}, args...)...))
	if err != nil {
		c.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, said)
	}
	c.Logf("kubectl %s:\n%s", strings.Join(args, " "), said.Stdout)
}

// awaitProxies waits until each Node has the wanted proxies' pods.
func (c *control) awaitProxies(want string) {
	c.Helper()
	var have string
	err := wait.PollUntilContextTimeout(c.Context(), 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		nodes := map[string]string{}
		pods, err := c.client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, p := range pods.Items {
			if owner := metav1.GetControllerOf(&p); owner != nil && p.DeletionTimestamp == nil && p.Spec.Affinity != nil { // the DaemonSet's controller names the Node there
				for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
					for _, field := range term.MatchFields {
						nodes[fmt.Sprintf("%s on %s", owner.Name, field.Values[0])] = p.Name
					}
				}
			}
		}
		have = strings.Join(slices.Sorted(maps.Keys(nodes)), ", ")
		return have == want, nil
	})
	if err != nil {
		c.Fatalf("there is %s, want %s (%v)", have, want, err)
	}
}

// checkPodRights asks with a token as the kubelet gets it for the proxy's pod.
func (c *control) checkPodRights() {
	c.Helper()
	ctx := c.Context()
	const account = "winkube-proxy-pods"
	token, err := c.client.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, account, &authentication.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.path("admin.conf"))
	if err != nil {
		c.Fatal(err)
	}
	config.CertData, config.KeyData, config.BearerToken = nil, nil, token.Status.Token
	proxy, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.Fatal(err)
	}
	_, endpoints := proxy.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	_, services := proxy.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	_, nodes := proxy.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	_, ranges := proxy.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err := errors.Join(endpoints, services, nodes, ranges); err != nil {
		c.Errorf("the proxy's pod may not read: %v", err)
	}
	_, secrets := proxy.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	_, own := proxy.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, account, &authentication.TokenRequest{}, metav1.CreateOptions{})
	_, nodesToken := proxy.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "winkube-proxy", &authentication.TokenRequest{}, metav1.CreateOptions{})
	for what, err := range map[string]error{"read Secrets": secrets, "request its own token": own, "request tokens of joined nodes": nodesToken} {
		if !apierrors.IsForbidden(err) {
			c.Errorf("the proxy's pod may %s: %v", what, err)
		}
	}
}
