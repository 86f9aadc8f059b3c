package kubeclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	certificates "k8s.io/api/certificates/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/clientset"
)

// NodeIdentity says how a node gets its client certificate.
type NodeIdentity struct {
	NodeName   string
	Bootstrap  string // kubeconfig for requesting a certificate, as kubeadm writes it; "": none
	Kubeconfig string // the node's own; Join creates it if it is missing
	CertDir    string
	UserAgent  string
}

func (n NodeIdentity) template() *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + n.NodeName, Organization: []string{"system:nodes"}}}
}

func (n NodeIdentity) pair(client func(expired bool) (clientset.Interface, error), changed func(), initial *tls.Certificate) (*Pair, error) {
	return NewPair(PairConfig{Name: "kubelet-client", Dir: n.CertDir, Signer: certificates.KubeAPIServerClientKubeletSignerName,
		Template: n.template, Client: client, Changed: changed}, initial)
}

// Join creates the node's kubeconfig with a certificate, which it requests with the bootstrap credentials. It does nothing if there is a
// usable kubeconfig. It blocks until the certificate is issued or ctx ends; it logs failures and retries.
func (n NodeIdentity) Join(ctx context.Context) error {
	usable, err := n.Usable()
	if err != nil || usable || n.Bootstrap == "" {
		return err
	}
	if _, err := os.Stat(n.Bootstrap); err != nil {
		if _, own := os.Stat(n.Kubeconfig); own == nil {
			klog.InfoS("The node's client certificate has probably expired, and there are no bootstrap credentials to request another; run kubeadm join again", "kubeconfig", n.Kubeconfig, "bootstrap", n.Bootstrap)
			return nil
		}
		return fmt.Errorf("--kubeconfig=%s does not exist and --bootstrap-kubeconfig cannot be read: %w", n.Kubeconfig, err)
	}
	pair, err := n.bootstrapPair()
	if err != nil {
		return err
	}
	klog.InfoS("Joining: requesting a client certificate", "node", n.NodeName, "bootstrap", n.Bootstrap)
	for retry := (wait.Backoff{Duration: 2 * time.Second, Factor: 2, Steps: math.MaxInt, Cap: 30 * time.Second}); ; {
		if err = pair.Renew(ctx); err == nil {
			return n.writeKubeconfig(pair.Path())
		}
		klog.ErrorS(err, "Cannot get a client certificate; retrying", "node", n.NodeName)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry.Step()):
		}
	}
}

// Request makes one request for a client certificate with the bootstrap credentials, and writes the node's kubeconfig. It blocks until the
// API server has answered or ctx ends.
func (n NodeIdentity) Request(ctx context.Context) error {
	pair, err := n.bootstrapPair()
	if err != nil {
		return err
	}
	if err := pair.Renew(ctx); err != nil {
		return err
	}
	return n.writeKubeconfig(pair.Path())
}

func (n NodeIdentity) bootstrapPair() (*Pair, error) {
	client, err := n.bootstrapClient()
	if err != nil {
		return nil, err
	}
	return n.pair(func(bool) (clientset.Interface, error) { return client, nil }, nil, nil)
}

// Usable reports whether the kubeconfig exists and its certificate, if any, has not expired.
func (n NodeIdentity) Usable() (bool, error) {
	if _, err := os.Stat(n.Kubeconfig); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", n.Kubeconfig)
	if err != nil {
		return false, fmt.Errorf("cannot use kubeconfig %s: %s", n.Kubeconfig, oneLine(err))
	}
	cert, err := clientCertificate(config)
	switch {
	case errors.Is(err, fs.ErrNotExist): // left from a partly removed installation
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot use kubeconfig %s: %s", n.Kubeconfig, oneLine(err))
	}
	return cert == nil || time.Now().Before(cert.Leaf.NotAfter), nil
}

func (n NodeIdentity) bootstrapClient() (clientset.Interface, error) {
	config, err := Config(Options{Kubeconfig: n.Bootstrap, UserAgent: n.UserAgent})
	if err != nil {
		return nil, fmt.Errorf("--bootstrap-kubeconfig: %w", err)
	}
	return clientset.NewForConfig(config)
}

// writeKubeconfig writes the node's own kubeconfig, with the bootstrap file's cluster and the pair's file as credentials.
func (n NodeIdentity) writeKubeconfig(pair string) error {
	file, err := clientcmd.LoadFromFile(n.Bootstrap)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(file)
	}
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig: %s", oneLine(err))
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil || file.Clusters[current.Cluster] == nil {
		return fmt.Errorf("--bootstrap-kubeconfig=%s: its current context %q names no cluster of the file", n.Bootstrap, file.CurrentContext)
	}
	own := clientcmdapi.NewConfig()
	own.Clusters["default-cluster"] = file.Clusters[current.Cluster]
	own.AuthInfos["default-auth"] = &clientcmdapi.AuthInfo{ClientCertificate: pair, ClientKey: pair}
	own.Contexts["default-context"] = &clientcmdapi.Context{Cluster: "default-cluster", AuthInfo: "default-auth", Namespace: "default"}
	own.CurrentContext = "default-context"
	data, err := clientcmd.Write(*own)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(n.Kubeconfig), 0o755); err != nil {
		return fmt.Errorf("cannot write --kubeconfig: %w", err)
	}
	temp := n.Kubeconfig + ".new" // so that readers never see a partial file
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("cannot write --kubeconfig: %w", err)
	}
	return os.Rename(temp, n.Kubeconfig)
}

// clientCertificate is the client certificate of a configuration; nil if it has none.
func clientCertificate(config *rest.Config) (*tls.Certificate, error) {
	full := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(full); err != nil || len(full.CertData) == 0 {
		return nil, err
	}
	cert, err := tls.X509KeyPair(full.CertData, full.KeyData)
	if err != nil {
		return nil, err
	}
	return &cert, nil
}

// Rotating returns a configuration that uses the newest certificate for each new connection, and the Pair that renews it; the caller must
// Run it. If the kubeconfig has no client certificate, the Pair is nil and the configuration is unchanged.
func (n NodeIdentity) Rotating(config *rest.Config) (*rest.Config, *Pair, error) {
	initial, err := clientCertificate(config)
	if err != nil {
		return nil, nil, err
	}
	if initial == nil {
		klog.InfoS("Not renewing a client certificate: the kubeconfig has none", "kubeconfig", n.Kubeconfig)
		return config, nil, nil
	}
	out := rest.CopyConfig(config)
	all := &fleet{}
	pair, err := n.pair(func(expired bool) (clientset.Interface, error) {
		if _, err := os.Stat(n.Bootstrap); expired && n.Bootstrap != "" && err == nil {
			return n.bootstrapClient()
		}
		return clientset.NewForConfig(out)
	}, all.renew, initial)
	if err != nil {
		return nil, nil, err
	}
	if all.open, err = transports(config, pair.Current); err != nil {
		return nil, nil, err
	}
	out.Transport = all.add()
	out.TLSClientConfig, out.Proxy = rest.TLSClientConfig{}, nil // they are part of the transport; client-go accepts only one of both
	if !strings.Contains(out.Host, "://") {
		out.Host = "https://" + out.Host
	}
	return out, pair, nil
}

// transports returns a function that creates transports for config. At each handshake they use the certificate from current.
func transports(config *rest.Config, current func() *tls.Certificate) (func() *http.Transport, error) {
	plain := rest.CopyConfig(config)
	plain.CertData, plain.KeyData, plain.CertFile, plain.KeyFile = nil, nil, "", ""
	settings, err := rest.TLSConfigFor(plain)
	if err != nil {
		return nil, err
	}
	if settings == nil {
		settings = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return current(), nil }
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return func() *http.Transport {
		return utilnet.SetTransportDefaults(&http.Transport{Proxy: proxy, TLSHandshakeTimeout: 10 * time.Second, TLSClientConfig: settings.Clone(),
			MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second, DialContext: dialer.DialContext, DisableCompression: config.DisableCompression})
	}, nil
}

// ServingPair is the kubelet's own serving certificate, requested for the Node's addresses (serverTLSBootstrap).
func ServingPair(client clientset.Interface, dir string, template func() *x509.CertificateRequest) (*Pair, error) {
	return NewPair(PairConfig{Name: "kubelet-server", Dir: dir, Signer: certificates.KubeletServingSignerName, Template: template,
		Client: func(bool) (clientset.Interface, error) { return client, nil }}, nil)
}
