package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/stats"
)

// newServing creates the Pair that requests the serving certificate; nil: none is requested.
func newServing(cfg Config, client clientset.Interface, objects *kubeclient.Objects) (*kubeclient.Pair, error) {
	if !cfg.RotateServing {
		return nil, nil
	}
	return kubeclient.ServingPair(client, cfg.Server.TLS.CertDir, func() *x509.CertificateRequest { return servingTemplate(cfg.NodeName, objects.Node()) })
}

// served returns the server's certificate function; nil: the server's own Config applies.
func served(serving *kubeclient.Pair) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if serving == nil {
		return nil
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := serving.Current(); cert != nil {
			return cert, nil
		}
		return nil, errors.New("no serving certificate yet: its request has not been approved (kubectl get csr)")
	}
}

// certificates are the renewed certificates, by their names in /metrics.
func certificates(client, serving *kubeclient.Pair) map[string]stats.Certificate {
	all := map[string]stats.Certificate{}
	if client != nil {
		all[stats.ClientCertificate] = client
	}
	if serving != nil {
		all[stats.ServingCertificate] = serving
	}
	return all
}

// servingTemplate is the certificate template for a Node's addresses; nil if there are none yet. It is pure.
func servingTemplate(name string, n *v1.Node) *x509.CertificateRequest {
	if n == nil {
		return nil
	}
	t := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}}
	for _, address := range n.Status.Addresses {
		if ip := net.ParseIP(address.Address); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if address.Address != "" && !slices.Contains(t.DNSNames, address.Address) {
			t.DNSNames = append(t.DNSNames, address.Address)
		}
	}
	if len(t.IPAddresses)+len(t.DNSNames) == 0 {
		return nil
	}
	return t
}
