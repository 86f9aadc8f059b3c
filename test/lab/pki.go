package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// identity is one certificate: for a client if it has no names, otherwise for a server.
type identity struct {
	host   *Host
	file   string // below the host's pki directory, without extension
	common string
	groups []string
	names  []string // DNS names and addresses
	// kubeconfig: also write a kubeconfig of that identity next to the certificate.
	kubeconfig bool
}

func (c *Cluster) identities() []identity {
	control := c.Control
	list := []identity{
		{host: control, file: "apiserver", common: "kube-apiserver", names: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + DNSDomain,
			"localhost", control.Name, "127.0.0.1", ServiceIP, control.Addr.String(),
		}},
		{host: control, file: "apiserver-kubelet-client", common: "kube-apiserver"},
		{host: control, file: "front-proxy-client", common: "front-proxy-client"},
		{host: control, file: "admin", common: "admin", groups: []string{"system:masters"}, kubeconfig: true},
		{host: control, file: "controller-manager", common: "system:kube-controller-manager", kubeconfig: true},
		{host: control, file: "scheduler", common: "system:kube-scheduler", kubeconfig: true},
	}
	for _, node := range slices.Concat(c.Nodes, c.spare, []*Host{c.Peer}, c.Windows) {
		list = append(list,
			identity{host: node, file: "kubelet", common: "system:node:" + node.Name, groups: []string{"system:nodes"}, kubeconfig: true},
			identity{host: node, file: "kubelet-server", common: node.Name, names: []string{node.Name, node.Addr.String(), "127.0.0.1", "localhost"}},
			identity{host: node, file: "proxy", common: "system:kube-proxy", kubeconfig: true},
		)
	}
	return list
}

// PKI returns the path of a file in the host's pki directory.
func (h *Host) PKI(name string) string { return h.Dir("pki", name) }

// Kubeconfig is the path of the administrator's kubeconfig for use on the machine itself.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.State, "kubeconfig") }

// upCertificates creates one CA and all credentials, each in the directory of the host that uses it. It keeps a
// complete set.
func (c *Cluster) upCertificates(context.Context) error {
	done := c.Control.PKI("complete")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	ca, caPEM, err := newAuthority(c.Control.PKI("ca"))
	if err != nil {
		return err
	}
	for _, host := range c.machines() {
		if err := os.MkdirAll(host.PKI(""), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(host.PKI("ca.crt"), caPEM, 0o644); err != nil {
			return err
		}
	}
	for _, id := range c.identities() {
		if err := c.issue(ca, caPEM, id); err != nil {
			return fmt.Errorf("cannot make the certificate of %s: %w", id.common, err)
		}
	}
	serviceAccounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&serviceAccounts.PublicKey)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Control.PKI("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return err
	}
	if _, err := writeKey(c.Control.PKI("sa.key"), serviceAccounts); err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o644)
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(file string) (*authority, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certificate("winkube-lab")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	if _, err := writeKey(file+".key", key); err != nil {
		return nil, nil, err
	}
	return &authority{cert, key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func certificate(common string, groups ...string) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial)
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      pkix.Name{CommonName: common, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
	}
}

func (c *Cluster) issue(ca *authority, caPEM []byte, id identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := certificate(id.common, id.groups...)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, name := range id.names {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if addr, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM, err := writeKey(id.host.PKI(id.file+".key"), key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(id.host.PKI(id.file+".crt"), certPEM, 0o644); err != nil || !id.kubeconfig {
		return err
	}
	server := "https://" + net.JoinHostPort(c.Control.Addr.String(), apiPort)
	return writeKubeconfig(id.host.PKI(id.file+".kubeconfig"), server, caPEM, certPEM, keyPEM)
}

func writeKey(path string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return data, os.WriteFile(path, data, 0o600)
}

func writeKubeconfig(path, server string, ca, cert, key []byte) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["winkube"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["winkube"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["winkube"] = &clientcmdapi.Context{Cluster: "winkube", AuthInfo: "winkube"}
	config.CurrentContext = "winkube"
	return clientcmd.WriteToFile(*config, path)
}
