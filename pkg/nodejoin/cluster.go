package nodejoin

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/nodejoin/discovery"
)

// The service account of proxy tokens, created by build/kubernetes/node-join.yaml.
const (
	proxyNamespace = "kube-system"
	proxyAccount   = "winkube-proxy"
	// manifest is applied once per cluster.
	manifest = "build/kubernetes/node-join.yaml"
)

// clusterOf is the cluster of a kubeconfig's current context.
func clusterOf(path string) (discovery.Cluster, error) {
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: path})
	if err != nil {
		return discovery.Cluster{}, fmt.Errorf("--kubeconfig: %w", err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return discovery.Cluster{}, fmt.Errorf("--kubeconfig=%s: %w", path, err)
	}
	return discovery.Cluster{Server: config.Host, CA: config.CAData}, nil
}

// gate queries the API server before anything is changed.
type gate struct{ *joiner }

// checkCluster checks that the API server will accept this host, before anything is changed.
func (j gate) checkCluster(ctx context.Context) error {
	if err := j.checkFormer(); err != nil {
		return err
	}
	if j.ProxyKubeconfig != "" {
		if err := j.checkProxyRights(ctx, "--proxy-kubeconfig="+j.ProxyKubeconfig, j.ProxyKubeconfig); err != nil {
			return err
		}
	}
	if j.Kubeconfig != "" {
		return j.checkIdentity(j.Kubeconfig)
	}
	client, err := j.bootstrapClient()
	if err != nil {
		return err
	}
	if err := j.checkToken(ctx, client); err != nil {
		return err
	}
	return j.checkName(ctx, client)
}

// bootstrapClient returns a client that uses the join token.
func (j *joiner) bootstrapClient() (clientset.Interface, error) {
	return clientset.NewForConfig(&rest.Config{Host: j.cluster.Server, BearerToken: j.token.Bearer(), UserAgent: j.UserAgent,
		TLSClientConfig: rest.TLSClientConfig{CAData: j.cluster.CA}})
}

// checkFormer refuses to continue if this host is a node of another cluster, or under another name.
func (j gate) checkFormer() error {
	path := j.Layout.NodeConfig()
	if !there(path) || sameFile(path, j.Kubeconfig) {
		return nil
	}
	have, err := clusterOf(path)
	if err != nil {
		return nil // it grants no access, and is replaced
	}
	if have.Server != j.cluster.Server || string(have.CA) != string(j.cluster.CA) {
		return fmt.Errorf("%s belongs to another cluster, %s; run `kubelet node leave` first", path, have.Server)
	}
	return j.checkIdentity(path)
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// checkIdentity refuses a kubeconfig whose certificate belongs to another node, or to no node.
func (j gate) checkIdentity(path string) error {
	name, err := commonName(path)
	if err != nil {
		return err
	}
	if want := nodeUser + j.NodeName; name != "" && name != want {
		return fmt.Errorf("%s has the certificate of %s, want %s; give --node-name, or run `kubelet node leave` first", path, name, want)
	}
	return nil
}

const nodeUser = "system:node:"

// commonName is the name in the client certificate of a kubeconfig; "": it has none.
func commonName(path string) (string, error) {
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: path})
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	for data := config.CertData; ; {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return "", nil
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", fmt.Errorf("%s: its client certificate: %w", path, err)
		}
		return cert.Subject.CommonName, nil
	}
}

// checkToken checks the permissions of the join token.
func (j gate) checkToken(ctx context.Context, client clientset.Interface) error {
	may, err := allowed(ctx, client, authorization.ResourceAttributes{Verb: "create", Group: "certificates.k8s.io", Resource: "certificatesigningrequests"})
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("--token=%s: the API server does not accept it: it has expired, or may not authenticate; create a new one with `kubeadm token create`", j.token)
	case err != nil:
		return fmt.Errorf("cannot ask the API server what the token may do: %w", err)
	case !may:
		return fmt.Errorf("--token=%s: it may not request a certificate; use one from `kubeadm token create`, whose group is system:bootstrappers:kubeadm:default-node-token", j.token)
	}
	if j.ProxyKubeconfig != "" {
		return nil
	}
	may, err = allowed(ctx, client, authorization.ResourceAttributes{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: proxyNamespace, Name: proxyAccount})
	if err != nil {
		return fmt.Errorf("cannot ask the API server what the token may do: %w", err)
	}
	if !may {
		return fmt.Errorf("--token=%s: it may not request the proxy's credentials; run `kubectl apply -f %s` once per cluster, or give --proxy-kubeconfig", j.token, manifest)
	}
	return nil
}

func allowed(ctx context.Context, client clientset.Interface, what authorization.ResourceAttributes) (bool, error) {
	review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &what}}
	answer, err := client.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// checkProxyRights refuses credentials with too few permissions for the proxy, and those with all permissions. whence is their source.
func (j gate) checkProxyRights(ctx context.Context, whence, kubeconfig string) error {
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: kubeconfig, UserAgent: j.UserAgent})
	if err != nil {
		return fmt.Errorf("%s: %w", whence, err)
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("%s: %w", whence, err)
	}
	for _, what := range []authorization.ResourceAttributes{{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices"}, {Verb: "watch", Resource: "services"}, {Verb: "watch", Resource: "nodes"}} {
		may, err := allowed(ctx, client, what)
		if err != nil {
			return fmt.Errorf("%s: the API server does not say what these credentials may do: %w", whence, err)
		}
		if !may {
			return fmt.Errorf("%s: these credentials may not watch %s; use ones with the role system:node-proxier", whence, what.Resource)
		}
	}
	all, err := allowed(ctx, client, authorization.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"})
	if err != nil {
		return fmt.Errorf("%s: %w", whence, err)
	}
	if all {
		return fmt.Errorf("%s: these are administrator credentials; use ones with only the role system:node-proxier", whence)
	}
	return nil
}

// checkName refuses the name of another machine's Node. kubeadm lets a token read Nodes; where it may not, the certificate decides.
func (j gate) checkName(ctx context.Context, client clientset.Interface) error {
	node, err := client.Nodes().Get(ctx, j.NodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		j.say("note: the token may not read Nodes, so another machine with the name %s cannot be detected", j.NodeName)
		return nil
	case err != nil:
		return fmt.Errorf("cannot look for a Node %s: %w", j.NodeName, err)
	}
	return j.checkNode(node)
}

// checkNode compares machines: by system UUID, or else by machine ID, which on Windows is the host name.
func (j gate) checkNode(node *v1.Node) error {
	theirs, ours := node.Status.NodeInfo.SystemUUID, j.Facts.SystemUUID
	what := "system UUID"
	if theirs == "" || ours == "" {
		theirs, ours, what = node.Status.NodeInfo.MachineID, j.Facts.MachineID, "machine ID"
	}
	if theirs == "" || strings.EqualFold(theirs, ours) {
		return nil // also for a Node that never had a kubelet
	}
	return fmt.Errorf("--node-name=%s: the cluster has a Node of that name for another machine (%s %s, and here %s); use another --node-name, or run `kubectl delete node %[1]s`",
		j.NodeName, what, theirs, cmp.Or(ours, "none"))
}

// kubeconfig returns a kubeconfig for this cluster with one user.
func (j issuer) kubeconfig(user clientcmdapi.AuthInfo) ([]byte, error) {
	file := clientcmdapi.NewConfig()
	file.Clusters["default-cluster"] = &clientcmdapi.Cluster{Server: j.cluster.Server, CertificateAuthorityData: j.cluster.CA}
	file.AuthInfos["default-auth"] = &user
	file.Contexts["default-context"] = &clientcmdapi.Context{Cluster: "default-cluster", AuthInfo: "default-auth"}
	file.CurrentContext = "default-context"
	return clientcmd.Write(*file)
}

// nodeClient returns a client that uses the node's own credentials.
func (j *joiner) nodeClient() (clientset.Interface, error) {
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: j.Layout.NodeConfig(), UserAgent: j.UserAgent})
	if err != nil {
		return nil, err
	}
	return clientset.NewForConfig(config)
}
