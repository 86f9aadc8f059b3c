package nodejoin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/nodejoin"
)

// TestRealAPIServer joins a host to a real control plane with kubeadm's roles and our manifest: cluster-info is signed,
// the certificate is approved, and the proxy's token is bound to the Node. The kubelet is simulated.
func TestRealAPIServer(t *testing.T) {
	if os.Getenv("WINKUBE_E2E") == "" {
		t.Skip("WINKUBE_E2E=1 runs it, after make up has built the control plane")
	}
	c := startControl(t)
	c.clusterInfo()
	c.apply("testdata/kubeadm.yaml")

	c.awaitSignature()

	b := newBare(t, "linux")
	b.cfg.Server, b.cfg.Hashes, b.cfg.Patience = c.address, []string{c.hash()}, time.Minute
	b.silent = true
	b.register = func() { c.register(b.cfg.Layout.NodeConfig()) }
	before := b.tree()
	if err := b.join(); err == nil || !strings.Contains(err.Error(), "it may not request the proxy's credentials; run `kubectl apply -f build/kubernetes/node-join.yaml`") || b.tree() != before {
		t.Fatalf("without our manifest: %v", err)
	}
	c.apply("../../build/kubernetes/node-join.yaml")
	if err := b.join(); err != nil {
		t.Fatalf("%v\n%s", err, b.said.String())
	}
	t.Logf("\n%s", b.said.String())
	after := b.tree()
	if err := b.join(); err != nil || b.tree() != after {
		t.Errorf("joining again: %v\n%s", err, b.tree())
	}
	c.checkProxy(b)
	if f, ok := nodejoin.OtherProxy(t.Context(), b.cfg.Layout.NodeConfig()); !ok || f.Fault {
		t.Errorf("other proxies: %v, %t", f, ok)
	}
	b.cfg.Token = "abcdef.0000000000000000"
	if err := b.join(); err == nil || !strings.Contains(err.Error(), "its second half does not fit the signature") {
		t.Errorf("a wrong token: %v", err)
	}
}

// clusterInfo creates the ConfigMap as kubeadm does; the controller signs it.
func (c *control) clusterInfo() {
	c.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters[""] = &clientcmdapi.Cluster{Server: "https://" + c.address, CertificateAuthorityData: c.caPEM}
	text, err := clientcmd.Write(*file)
	if err != nil {
		c.Fatal(err)
	}
	info := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info", Namespace: "kube-public"}, Data: map[string]string{"kubeconfig": string(text)}}
	err = wait.PollUntilContextTimeout(c.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { // the namespace is created later
		_, err := c.client.CoreV1().ConfigMaps("kube-public").Create(ctx, info, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
	if err != nil {
		c.Fatal(err)
	}
}

// awaitSignature waits for the controller, which has just started.
func (c *control) awaitSignature() {
	c.Helper()
	err := wait.PollUntilContextTimeout(c.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		info, err := c.client.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
		return err == nil && info.Data["jws-kubeconfig-abcdef"] != "", err
	})
	if err != nil {
		c.Fatalf("cluster-info is not signed: %v", err)
	}
}

// register does what the kubelet does, with the node's own credentials.
func (c *control) register(kubeconfig string) {
	c.Helper()
	client := clientOf(c.T, kubeconfig)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1", Labels: map[string]string{nodejoin.ProxyLabel: "true"}}}
	if _, err := client.Nodes().Create(c.Context(), node, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return
	} else if err != nil {
		c.Fatalf("the node may not register itself: %v", err)
	}
	status := v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{SystemUUID: "aaaa", MachineID: "m1"}, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}}
	patch, err := json.Marshal(map[string]any{"status": status}) // an update would undo the taints that controllers add meanwhile
	if err != nil {
		c.Fatal(err)
	}
	if _, err := client.Nodes().Patch(c.Context(), "win1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		c.Fatal(err)
	}
}

func clientOf(t *testing.T, kubeconfig string) *clientset.Client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// checkProxy: the proxy can read what it needs and nothing else. It can renew its token only for its own Node, and the
// token ends with the Node.
func (c *control) checkProxy(b *bare) {
	c.Helper()
	ctx, proxy := c.Context(), clientOf(c.T, b.file("proxy.conf"))
	_, slices := proxy.EndpointSlices("").List(ctx, metav1.ListOptions{})
	_, services := proxy.Services("").List(ctx, metav1.ListOptions{})
	_, nodes := proxy.Nodes().List(ctx, metav1.ListOptions{})
	_, ranges := proxy.ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err := errors.Join(slices, services, nodes, ranges); err != nil {
		c.Errorf("the proxy may not read: %v", err)
	}
	_, secrets := proxy.Secrets("").List(ctx, metav1.ListOptions{})
	_, pods := proxy.Pods("").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(secrets) || !apierrors.IsForbidden(pods) {
		c.Errorf("the proxy may read Secrets (%v) or pods (%v)", secrets, pods)
	}
	text, err := os.ReadFile(b.file("proxy.token"))
	if err != nil {
		c.Fatal(err)
	}
	token, err := kubeclient.ReadAccountToken(string(text))
	if err != nil {
		c.Fatal(err)
	}
	c.Logf("the proxy's token: %+v", token)
	again, err := token.Request(ctx, proxy)
	if err != nil || again == string(text) {
		c.Errorf("the token cannot renew itself: %v", err)
	}
	other, err := c.client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for name, spec := range map[string]authentication.TokenRequestSpec{
		"bound to no Node": {}, "bound to another Node": {BoundObjectRef: &authentication.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: other.Name, UID: other.UID}},
		"bound without UID": {BoundObjectRef: &authentication.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: token.Node}},
	} {
		var last error
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { // the API server sees a policy after a moment
			_, last = proxy.ServiceAccounts("kube-system").CreateToken(ctx, "winkube-proxy", &authentication.TokenRequest{Spec: spec}, metav1.CreateOptions{})
			return last != nil && strings.Contains(last.Error(), "a token of winkube-proxy"), nil
		})
		if err != nil {
			c.Errorf("a token %s: %v", name, last)
		}
	}
	if _, err := proxy.ServiceAccounts("kube-system").CreateToken(ctx, "default", &authentication.TokenRequest{}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		c.Errorf("a token of another account: %v", err)
	}
	c.endsWithNode(b, proxy, token.Node)
}

// endsWithNode: after kubectl delete node the token is invalid. A host that joins again gets another.
func (c *control) endsWithNode(b *bare, proxy *clientset.Client, node string) {
	c.Helper()
	if err := c.client.CoreV1().Nodes().Delete(c.Context(), node, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(c.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { // the API server caches answers for a while
		_, err := proxy.Services("").List(ctx, metav1.ListOptions{})
		return apierrors.IsUnauthorized(err), nil
	})
	if err != nil {
		c.Errorf("the token of a deleted Node still opens the API server: %v", err)
	}
	b.starts["kubelet"] = 0
	if err := b.join(); err != nil {
		c.Fatalf("joining after the Node was deleted: %v\n%s", err, b.said.String())
	}
	if _, err := clientOf(c.T, b.file("proxy.conf")).Services("").List(c.Context(), metav1.ListOptions{}); err != nil {
		c.Errorf("the new token: %v", err)
	}
}
