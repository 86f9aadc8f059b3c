package nodejoin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/kubeclient"
)

// issuer obtains the credentials of node and proxy.
type issuer struct{ *joiner }

// getCertificate gives the node its credentials: a certificate requested with the token, or the given kubeconfig.
func (j issuer) getCertificate(ctx context.Context) error {
	if len(j.cluster.CA) > 0 {
		if _, err := writeFile(j.Layout.ca(), j.cluster.CA, 0o644); err != nil {
			return err
		}
	}
	if j.Kubeconfig != "" {
		wrote, err := copyConfig(j.Kubeconfig, j.Layout.NodeConfig())
		if err == nil {
			j.say("credentials of the node: %s", changes(count(wrote), j.Layout.NodeConfig()))
		}
		return err
	}
	identity := kubeclient.NodeIdentity{NodeName: j.NodeName, Bootstrap: j.Layout.bootstrap(), Kubeconfig: j.Layout.NodeConfig(), CertDir: j.Layout.certDir(), UserAgent: j.UserAgent}
	if usable, err := identity.Usable(); err == nil && usable {
		j.say("credentials of the node: unchanged")
		return nil
	}
	text, err := j.kubeconfig(clientcmdapi.AuthInfo{Token: j.token.Bearer()})
	if err != nil {
		return err
	}
	if _, err := writeFile(j.Layout.bootstrap(), text, 0o600); err != nil {
		return err
	}
	defer os.Remove(j.Layout.bootstrap()) // the token is valid for more than this node
	ctx, cancel := context.WithTimeout(ctx, j.Patience)
	defer cancel()
	if err := identity.Request(ctx); ctx.Err() != nil {
		return fmt.Errorf("%w; it was not approved within %s: run `kubectl certificate approve`, or give join tokens the role that kubeadm gives them", err, j.Patience)
	} else if err != nil {
		return err
	}
	j.say("credentials of the node: certificate of %s%s", nodeUser, j.NodeName)
	return nil
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// copyConfig copies a kubeconfig and makes relative paths absolute; it does nothing if from and to are the same file.
func copyConfig(from, to string) (wrote bool, err error) {
	if sameFile(from, to) {
		return false, nil
	}
	file, err := clientcmd.LoadFromFile(from)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(file)
	}
	if err != nil {
		return false, err
	}
	data, err := clientcmd.Write(*file)
	if err != nil {
		return false, err
	}
	return writeFile(to, data, 0o600)
}

// awaitNode waits until the kubelet has registered the Node.
func (j *joiner) awaitNode(ctx context.Context) error {
	client, err := j.nodeClient()
	if err != nil {
		return err
	}
	_, err = j.await(ctx, client, func(*v1.Node) bool { return true })
	if err != nil {
		return fmt.Errorf("the kubelet has not registered Node %s after %s: %w; check its log (%s), then run this again", j.NodeName, j.Patience, err, j.logs())
	}
	j.say("Node %s: registered", j.NodeName)
	return nil
}

// logs says where the kubelet's log is.
func (j *joiner) logs() string {
	if j.Facts.OS == "windows" {
		return j.Layout.Logs[0]
	}
	return "journalctl -u kubelet"
}

// retry is the pause after an error of the API server.
const retry = time.Second

// await returns the Node as soon as wanted accepts it.
func (j *joiner) await(ctx context.Context, client clientset.Interface, wanted func(*v1.Node) bool) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, j.Patience)
	defer cancel()
	for {
		node, err := awaitOnce(ctx, client, j.NodeName, wanted)
		if node != nil {
			return node, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(retry):
		}
	}
}

// awaitOnce reads the Node and follows it until the watch ends; nil: wanted has not accepted it.
func awaitOnce(ctx context.Context, client clientset.Interface, name string, wanted func(*v1.Node) bool) (*v1.Node, error) {
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	node, err := client.Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && wanted(node):
		return node, nil
	case err == nil:
		only.ResourceVersion = node.ResourceVersion
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	watch, err := client.Nodes().Watch(ctx, only)
	if err != nil {
		return nil, err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if node, ok := event.Object.(*v1.Node); ok && node.Name == name && event.Type != "DELETED" && wanted(node) {
			return node, nil
		}
	}
	return nil, nil
}

// getProxyCredentials gives the proxy its own credentials: a token of its service account that is bound to this Node, or the given kubeconfig.
func (j issuer) getProxyCredentials(ctx context.Context) error {
	path := j.Layout.proxyConfig()
	if j.ProxyKubeconfig != "" {
		wrote, err := copyConfig(j.ProxyKubeconfig, path)
		if err == nil {
			j.say("credentials of the proxy: %s", changes(count(wrote), path))
		}
		return err
	}
	client, err := j.nodeClient()
	if err != nil {
		return err
	}
	node, err := client.Nodes().Get(ctx, j.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read Node %s: %w", j.NodeName, err)
	}
	want := kubeclient.AccountToken{Namespace: proxyNamespace, Account: proxyAccount, Node: node.Name, NodeUID: node.UID}
	fresh, err := j.requestProxyToken(ctx, want)
	if err != nil {
		return err
	}
	text, err := j.kubeconfig(clientcmdapi.AuthInfo{TokenFile: j.Layout.proxyToken()})
	if err != nil {
		return err
	}
	wrote, err := writeFile(path, text, 0o600)
	if err != nil {
		return err
	}
	if err := gate(j).checkProxyRights(ctx, path, path); err != nil {
		return err
	}
	j.say("credentials of the proxy: %s", changes(count(fresh)+count(wrote), fmt.Sprintf("token of service account %s/%s, bound to Node %s", proxyNamespace, proxyAccount, node.Name)))
	return nil
}

// requestProxyToken replaces the token in its file unless it is recent and bound to this Node.
func (j issuer) requestProxyToken(ctx context.Context, want kubeclient.AccountToken) (fresh bool, err error) {
	data, err := os.ReadFile(j.Layout.proxyToken())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	have, err := kubeclient.ReadAccountToken(string(data))
	if err == nil && have.NodeUID == want.NodeUID && have.Account == want.Account && j.Now().Before(have.Due()) {
		return false, nil
	}
	client, err := j.bootstrapClient()
	if err != nil {
		return false, err
	}
	token, err := want.Request(ctx, client)
	if err != nil {
		return false, fmt.Errorf("%w; run `kubectl apply -f %s` once per cluster, or give --proxy-kubeconfig", err, manifest)
	}
	return true, kubeclient.WriteSecret(j.Layout.proxyToken(), token)
}

// awaitReady waits until the Node is ready, which includes the pods' network.
func (j *joiner) awaitReady(ctx context.Context) error {
	client, err := j.nodeClient()
	if err != nil {
		return err
	}
	last := "it reports nothing"
	_, err = j.await(ctx, client, func(n *v1.Node) bool {
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				last = c.Reason + ": " + c.Message
				return c.Status == v1.ConditionTrue
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("the Node %s is not Ready after %s: %s; run `kubelet doctor` and check the log (%s), then run this again", j.NodeName, j.Patience, last, j.logs())
	}
	j.say("Node %s: Ready", j.NodeName)
	return nil
}
