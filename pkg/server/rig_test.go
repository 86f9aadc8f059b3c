package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
)

// authority signs the tests' certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	return a
}

func sign(t *testing.T, template *x509.Certificate, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, parentKey := template, key
	if by != nil {
		parent, parentKey = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// client returns a client certificate as PEM.
func (a *authority) client(user string, groups ...string) (cert, key []byte) {
	return a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

func (a *authority) issue(template *x509.Certificate) (cert, key []byte) {
	c, k := sign(a.t, template, a)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// rig is a running server with its fakes and its users' credentials.
type rig struct {
	t      *testing.T
	server *Server
	ca     *authority
	caFile string
	api    *fakeAPI
	engine *fakeEngine
	stop   func()

	mu    sync.Mutex
	certs map[string][2][]byte // user -> certificate, key: each user keeps theirs
}

// limited is how many requests or connections a limit has refused or closed.
func (r *rig) limited(limit string) int {
	r.t.Helper()
	var m dto.Metric
	if err := r.server.parts.Limited.WithLabelValues(limit).Write(&m); err != nil {
		r.t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

func newRig(t *testing.T, change func(*Config, *Parts)) *rig {
	t.Helper()
	r := &rig{t: t, ca: newAuthority(t, "client CA"), engine: newFakeEngine(), certs: map[string][2][]byte{}}
	r.api = &fakeAPI{
		tokens: map[string]string{"good-token": "reader", "root-token": "root", "stranger-token": "stranger"},
		rules:  map[string][]string{"root": {"*"}, "reader": {"get metrics", "get stats", "get healthz"}},
	}
	dir := t.TempDir()
	r.caFile = filepath.Join(dir, "ca.crt")
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert, key := r.ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "node-1"}})
	for file, data := range map[string][]byte{r.caFile: r.ca.pem(), certFile: cert, keyFile: key} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, name+"\n") })
	}
	config := Config{
		Address: "127.0.0.1:0", NodeName: "node-1", TLS: TLS{CertFile: certFile, KeyFile: keyFile},
		Authentication: Authentication{ClientCAFile: r.caFile, Webhook: true},
		Debugging:      true, Profiling: true, DebugFlags: true,
	}
	parts := Parts{
		Pods: newFakePods(), Engine: r.engine, TokenReviews: tokenReviews{r.api}, AccessReviews: accessReviews{r.api},
		Observer: fakeObserver{},
		Metrics:  text("metrics"), MetricsCadvisor: text("cadvisor"), MetricsProbes: text("probes"), MetricsResource: text("resource"),
		StatsSummary: text("summary"), DebugPods: text("pods"), Configz: map[string]string{"kind": "KubeletConfiguration"},
		Checks: []Check{{Name: "syncloop", Check: func(context.Context) error { return nil }}},
	}
	if change != nil {
		change(&config, &parts)
	}
	server, err := New(config, parts)
	if err != nil {
		t.Fatal(err)
	}
	r.server = server
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// as returns a client configuration for a user with a certificate, or with a token ("token:..."), or without credentials ("").
func (r *rig) as(who string) *rest.Config {
	config := &rest.Config{Host: "https://" + r.server.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if token, ok := strings.CutPrefix(who, "token:"); ok {
		config.BearerToken = token
	} else if who != "" {
		r.mu.Lock()
		defer r.mu.Unlock()
		pair, ok := r.certs[who]
		if !ok {
			pair[0], pair[1] = r.ca.client(who)
			r.certs[who] = pair
		}
		config.CertData, config.KeyData = pair[0], pair[1]
	}
	return config
}

func (r *rig) http(config *rest.Config) *http.Client {
	r.t.Helper()
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		r.t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: bearer{config.BearerToken, transport}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// get sends a request as root and returns status and body.
func (r *rig) get(method, path string, body string) (int, string) {
	r.t.Helper()
	return r.do(r.http(r.as("root")), method, path, body)
}

func (r *rig) do(client *http.Client, method, path, body string) (int, string) {
	r.t.Helper()
	request, err := http.NewRequest(method, "https://"+r.server.Addr().String()+path, bytes.NewBufferString(body))
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}
