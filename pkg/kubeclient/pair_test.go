package kubeclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// signer is an API server that signs every request immediately, unless it fails.
type signer struct {
	*clientsettest.Clientset
	t      *testing.T
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	life   time.Duration
	signed atomic.Int32
	fail   atomic.Bool
}

func newSigner(t *testing.T, life time.Duration) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{Clientset: clientsettest.NewClientset(), t: t, key: key, life: life}
	if s.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	s.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		request := action.(clienttesting.CreateAction).GetObject().(*certificates.CertificateSigningRequest)
		if s.fail.Load() {
			return true, nil, errors.New("the API server is away")
		}
		request.Name, request.UID = "csr-1", "1"
		request.Status.Certificate = s.sign(request.Spec.Request)
		request.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: "True"}}
		_ = s.Tracker().Delete(certificates.SchemeGroupVersion.WithResource("certificatesigningrequests"), "", "csr-1")
		return true, request, s.Tracker().Add(request)
	})
	return s
}

func (s *signer) sign(request []byte) []byte {
	block, _ := pem.Decode(request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(int64(s.signed.Add(1)) + 1), Subject: csr.Subject, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
		NotBefore: now.Add(-5 * time.Minute), NotAfter: now.Add(s.life), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, s.ca, csr.PublicKey, s.key)
	if err != nil {
		s.t.Error(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// pair returns a certificate for node n1 and its key, both PEM.
func (s *signer) pair(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := certutil.MakeCSRFromTemplate(key, NodeIdentity{NodeName: "n1"}.template())
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	return s.sign(request), keyPEM
}

func (s *signer) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.ca)
	return pool
}

// TestRenewIn: when the next certificate is requested, in hours from now. jitter 0.5 means 80 % of the lifetime.
func TestRenewIn(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(hours float64) time.Time { return begin.Add(time.Duration(hours * float64(time.Hour))) }
	leaf := &x509.Certificate{NotBefore: at(0), NotAfter: at(100)}
	for _, test := range []struct {
		what     string
		got, now time.Time
		want     float64
	}{
		{"read from disk", time.Time{}, at(10), 70},
		{"read from disk, late", time.Time{}, at(90), -10},
		{"dated back by 20", at(20), at(20), 64},
		{"it came just now, our clock is ahead of its end", at(200), at(200), 1},
		{"that, a while later", at(200), at(203), -2},
		{"our clock is behind", at(-1000), at(-1000), 80},
		{"our clock was set right", at(0), at(300), -220},
	} {
		if got := renewIn(leaf, test.got, test.now, 0.5).Hours(); got < test.want-0.01 || got > test.want+0.01 {
			t.Errorf("%s: in %.2f h, want %.2f h", test.what, got, test.want)
		}
	}
}

// TestJoinAndRotate follows a node's identity against a server that checks certificates while they are valid: a bootstrap, an outage and
// generations of two seconds.
func TestJoinAndRotate(t *testing.T) {
	api := newSigner(t, 2*time.Second)
	var seen, refused atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaf := r.TLS.PeerCertificates[0]
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: api.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			refused.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		seen.Store(int32(leaf.SerialNumber.Int64()))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()

	dir := t.TempDir()
	node := NodeIdentity{NodeName: "n1", Bootstrap: filepath.Join(dir, "bootstrap.conf"), Kubeconfig: filepath.Join(dir, "etc", "kubelet.conf"), CertDir: filepath.Join(dir, "pki")}
	bootstrap := clientcmdapi.NewConfig()
	bootstrap.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
	bootstrap.AuthInfos["t"] = &clientcmdapi.AuthInfo{Token: "abcdef.0123456789abcdef"}
	bootstrap.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "t"}
	bootstrap.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*bootstrap, node.Bootstrap); err != nil {
		t.Fatal(err)
	}

	first, err := node.pair(func(bool) (clientset.Interface, error) { return api, nil }, nil, nil)
	if err == nil {
		err = first.Renew(t.Context())
	}
	if err == nil {
		err = node.writeKubeconfig(first.Path())
	}
	if err != nil {
		t.Fatal(err)
	}
	if usable, err := node.Usable(); !usable || err != nil {
		t.Fatalf("usable: %v, %v", usable, err)
	}
	config, err := Config(Options{Kubeconfig: node.Kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	rotating, pair, err := node.Rotating(config)
	if err != nil {
		t.Fatal(err)
	}
	pair.cfg.Client = func(bool) (clientset.Interface, error) { return api, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- pair.Run(ctx) }()
	client, err := rest.HTTPClientFor(rotating)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for seen.Load() < 4 && time.Now().Before(deadline) {
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	cancel()
	<-ended
	if seen.Load() < 4 || refused.Load() > 0 {
		t.Errorf("seen up to certificate %d, refused %d times", seen.Load(), refused.Load())
	}
	files, _ := filepath.Glob(filepath.Join(node.CertDir, "*"))
	if len(files) > kept+2 {
		t.Errorf("files are kept: %q", files)
	}
	data, err := os.ReadFile(node.Kubeconfig)
	if err != nil || !strings.Contains(string(data), pair.Path()) || strings.Contains(string(data), "abcdef") {
		t.Errorf("%v\n%s", err, data)
	}
	if info, err := os.Stat(pair.Path()); err != nil || info.Mode().Perm() != 0o600 && goruntime.GOOS != "windows" { // Windows has no such bits
		t.Errorf("%v, %v", info, err)
	}
}

// TestRenewalFails: the old certificate stays in use, and renewal is retried.
func TestRenewalFails(t *testing.T) {
	api := newSigner(t, time.Hour)
	node := NodeIdentity{NodeName: "n1", CertDir: t.TempDir()}
	pair, err := node.pair(func(bool) (clientset.Interface, error) { return api, nil }, nil, nil)
	if err != nil || pair.Current() != nil {
		t.Fatalf("%v, %v", pair.Current(), err)
	}
	if err := pair.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := pair.Current()
	api.fail.Store(true)
	if err := pair.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "away") || pair.Current() != before {
		t.Errorf("%v, other certificate: %v", err, pair.Current() != before)
	}
	if n := pair.Failures(); n != 1 {
		t.Errorf("%d failures are counted, want 1", n)
	}
	// After a restart, the stored certificate is found, unless the kubeconfig has a newer one.
	again, err := node.pair(nil, nil, nil)
	if err != nil || again.Current() == nil || again.Current().Leaf.SerialNumber.Cmp(before.Leaf.SerialNumber) != 0 {
		t.Errorf("%v, %v", again.Current(), err)
	}
	newer := *before
	leaf := *before.Leaf
	leaf.NotBefore = leaf.NotBefore.Add(time.Minute)
	newer.Leaf = &leaf
	if third, err := node.pair(nil, nil, &newer); err != nil || third.Current() != &newer {
		t.Errorf("%v, %v", third.Current(), err)
	}
	// A truncated file must not prevent the start.
	if err := os.WriteFile(pair.Path(), []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if broken, err := node.pair(nil, nil, before); err != nil || broken.Current() != before {
		t.Errorf("%v, %v", broken, err)
	}
}

func TestJoinMistakes(t *testing.T) {
	dir := t.TempDir()
	node := NodeIdentity{NodeName: "n1", Bootstrap: filepath.Join(dir, "b"), Kubeconfig: filepath.Join(dir, "k"), CertDir: dir}
	if err := node.Join(t.Context()); err == nil || !strings.Contains(err.Error(), "--bootstrap-kubeconfig") {
		t.Error(err)
	}
	if err := os.WriteFile(node.Kubeconfig, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := node.Join(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot use kubeconfig") {
		t.Error(err)
	}
}
