package nodejoin

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/winkube/winkube/test/output"
)

// control is a real control plane on loopback without nodes: etcd, kube-apiserver and kube-controller-manager as in
// `make up`.
type control struct {
	*testing.T
	dir, address string
	ca           *x509.Certificate
	caPEM        []byte
	key          *rsa.PrivateKey
	serial       int64
	client       kubernetes.Interface // with an administrator's rights
}

const tools = "../../_output/tools"

func startControl(t *testing.T) *control {
	t.Helper()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		if _, err := os.Stat(filepath.Join(tools, name)); err != nil {
			t.Fatalf("%v: make up builds it", err)
		}
	}
	c := &control{T: t, dir: t.TempDir()}
	var err error
	if c.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	c.ca, c.caPEM = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature})
	_, server := c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	_, admin := c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	key, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	c.write("ca.crt", c.caPEM)
	c.write("server.crt", server)
	c.write("all.key", keyPEM)
	etcd, peer, api, manager := freePort(t), freePort(t), freePort(t), freePort(t)
	c.address = fmt.Sprintf("127.0.0.1:%d", api)
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + c.address, CertificateAuthorityData: c.caPEM}
	file.AuthInfos["a"] = &clientcmdapi.AuthInfo{ClientCertificateData: admin, ClientKeyData: keyPEM}
	file.Contexts["x"], file.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "a"}, "x"
	if err := clientcmd.WriteToFile(*file, c.path("admin.conf")); err != nil {
		t.Fatal(err)
	}
	at := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	c.run("etcd", "--data-dir="+c.path("etcd"), "--listen-client-urls="+at(etcd), "--advertise-client-urls="+at(etcd), "--listen-peer-urls="+at(peer), "--initial-advertise-peer-urls="+at(peer),
		"--initial-cluster=default="+at(peer), "--unsafe-no-fsync", "--log-level=error")
	c.run("kube-apiserver", "--etcd-servers="+at(etcd), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", api), "--tls-cert-file="+c.path("server.crt"),
		"--tls-private-key-file="+c.path("all.key"), "--client-ca-file="+c.path("ca.crt"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("all.key"),
		"--service-account-signing-key-file="+c.path("all.key"), "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--enable-bootstrap-token-auth",
		"--enable-admission-plugins=NodeRestriction", "--endpoint-reconciler-type=none")
	c.run("kube-controller-manager", "--kubeconfig="+c.path("admin.conf"), "--authentication-kubeconfig="+c.path("admin.conf"), "--authorization-kubeconfig="+c.path("admin.conf"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", manager), "--leader-elect=false", "--controllers=*,bootstrapsigner,tokencleaner", "--use-service-account-credentials",
		"--service-account-private-key-file="+c.path("all.key"), "--root-ca-file="+c.path("ca.crt"), "--cluster-signing-cert-file="+c.path("ca.crt"), "--cluster-signing-key-file="+c.path("all.key"))
	c.connect()
	return c
}

// connect waits for the API server.
func (c *control) connect() {
	c.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.path("admin.conf"))
	if err == nil {
		c.client, err = kubernetes.NewForConfig(config)
	}
	if err == nil {
		err = wait.PollUntilContextTimeout(c.Context(), 100*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			return err == nil, nil
		})
	}
	if err != nil {
		c.Fatalf("the API server does not answer: %v", err)
	}
}

func (c *control) path(name string) string { return filepath.Join(c.dir, name) }

func (c *control) write(name string, data []byte) {
	c.Helper()
	if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
		c.Fatal(err)
	}
}

// sign creates a certificate for the shared key, signed by the CA, or self-signed without one.
func (c *control) sign(template *x509.Certificate) (*x509.Certificate, []byte) {
	c.Helper()
	c.serial++
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(c.serial), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent := c.ca
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, crypto.PublicKey(&c.key.PublicKey), c.key)
	if err != nil {
		c.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (c *control) hash() string {
	sum := sha256.Sum256(c.ca.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// run starts one of the control plane's programs, which is stopped when the test ends.
func (c *control) run(name string, args ...string) {
	c.Helper()
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(tools, name), args...)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.Failed() {
			text := log.String()
			c.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

// apply applies a manifest with kubectl, as an administrator would.
func (c *control) apply(path string) {
	c.Helper()
	said, err := output.Of(exec.CommandContext(c.Context(), filepath.Join(tools, "kubectl"), "--kubeconfig="+c.path("admin.conf"), "apply", "-f", path))
	if err != nil {
		c.Fatalf("%v: %s", err, said)
	}
	c.Logf("kubectl apply -f %s:\n%s", path, said.Stdout)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
