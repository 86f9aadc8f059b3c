package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
)

func TestPaths(t *testing.T) {
	syncs := true
	r := newRig(t, func(_ *Config, parts *Parts) {
		parts.Checks = []Check{{Name: "syncloop", Check: func(context.Context) error {
			if syncs {
				return nil
			}
			return errors.New("no event for 10 m")
		}}}
		parts.Observer = fakeObserver{
			"b": {Namespace: "default", Name: "b", Containers: []pod.Container{{Name: "new", Image: "i:2", State: pod.Running}, {Name: "old", State: pod.Exited}}},
			"a": {Namespace: "default", Name: "a", Sandboxes: []pod.Sandbox{{ID: "1", Running: true}}},
			"c": {Namespace: "default", Name: "c", Containers: []pod.Container{{Name: "old", State: pod.Exited}}},
		}
	})
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/healthz", "", 200, "ok"},
		{"GET", "/healthz/ping", "", 200, "ok"},
		{"GET", "/healthz/log", "", 200, "ok"},
		{"GET", "/healthz/syncloop", "", 200, "ok"},
		{"GET", "/healthz/nothing", "", 404, "404 page not found\n"},
		{"GET", "/healthz?verbose", "", 200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"},
		{"GET", "/metrics", "", 200, "metrics\n"},
		{"GET", "/metrics/resource", "", 200, "resource\n"},
		{"GET", "/metrics/cadvisor", "", 200, "cadvisor\n"},
		{"GET", "/metrics/probes", "", 200, "probes\n"},
		{"GET", "/stats/summary", "", 200, "summary\n"},
		{"GET", "/debug/pods", "", 200, "pods\n"},
		{"GET", "/configz", "", 200, `{"kubeletconfig":{"kind":"KubeletConfiguration"}}`},
		{"GET", "/logs/", "", 404, "404 page not found\n"},
		{"GET", "/debug/flags/v", "", 406, "unsupported http method\n"},
		{"PUT", "/debug/flags/v", "loud", 400, "failed set klog.logging.verbosity \"loud\", want a number: strconv.ParseInt: parsing \"loud\": invalid syntax\n"},
		{"PUT", "/debug/flags/v", "7", 200, "successfully set klog.logging.verbosity to 7\n"},
		{"GET", "/runningpods/", "", 200, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[` +
			`{"metadata":{"name":"a","namespace":"default","uid":"a"},"spec":{"containers":null},"status":{}},` +
			`{"metadata":{"name":"b","namespace":"default","uid":"b"},"spec":{"containers":[{"name":"new","image":"i:2","resources":{}}]},"status":{}}]}`},
	} {
		if status, body := r.get(test.method, test.path, test.body); status != test.status || body != test.want {
			t.Errorf("%s %s: got %d %q, want %d %q", test.method, test.path, status, body, test.status, test.want)
		}
	}
	if !klog.V(7).Enabled() {
		t.Error("the verbosity was not set")
	}
	if status, body := r.get("GET", "/pods", ""); status != 200 || !strings.Contains(body, `"name":"web"`) || !strings.HasPrefix(body, `{"kind":"PodList"`) {
		t.Errorf("/pods: got %d %s", status, body)
	}
	if status, body := r.get("GET", "/debug/pprof/goroutine?debug=1", ""); status != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("/debug/pprof: got %d %s", status, body)
	}
	syncs = false
	for path, want := range map[string]string{
		"/healthz":                  "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
		"/healthz/syncloop":         "internal server error: no event for 10 m\n",
		"/healthz?exclude=syncloop": "ok",
	} {
		if _, body := r.get("GET", path, ""); body != want {
			t.Errorf("%s: got %q, want %q", path, body, want)
		}
	}
}

func TestDisabled(t *testing.T) {
	r := newRig(t, func(config *Config, parts *Parts) {
		config.Debugging = false
		parts.Metrics, parts.StatsSummary = nil, nil
	})
	for path, want := range map[string]int{
		"/exec/default/web/main?command=ls&output=1": 405, "/containerLogs/default/web/main": 405, "/run/default/web/main": 405, "/portForward/default/web": 405,
		"/runningpods/": 405, "/debug/pprof/": 405, "/logs/": 405,
		"/configz": 404, "/debug/flags/v": 404, "/debug/pods": 404, "/metrics": 404, "/stats/summary": 404,
		"/pods": 200, "/healthz": 200, "/metrics/resource": 200,
	} {
		if status, body := r.get("GET", path, ""); status != want || want == 405 && body != "Debug endpoints are disabled.\n" {
			t.Errorf("%s: got %d %q, want %d", path, status, body, want)
		}
	}
	r = newRig(t, func(config *Config, _ *Parts) { config.Profiling, config.DebugFlags = false, false })
	for _, path := range []string{"/debug/pprof/", "/debug/flags/v"} {
		if status, _ := r.get("GET", path, ""); status != 405 {
			t.Errorf("%s: got %d, want 405", path, status)
		}
	}
}

func TestAnonymousAndAlwaysAllow(t *testing.T) {
	r := newRig(t, func(config *Config, parts *Parts) {
		config.Authentication = Authentication{Anonymous: true}
		config.Authorization.Mode = AlwaysAllow
		parts.TokenReviews, parts.AccessReviews = nil, nil
	})
	if status, body := r.do(r.http(r.as("")), "GET", "/healthz", ""); status != 200 {
		t.Errorf("got %d %s", status, body)
	}
}

// dial returns the server's certificate.
func dial(t *testing.T, address string, version uint16) (*x509.Certificate, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0], nil
}

func TestSelfSigned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	r := newRig(t, func(config *Config, _ *Parts) { config.TLS = TLS{CertDir: dir} })
	first, err := dial(t, r.server.Addr().String(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.VerifyHostname("node-1"); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(filepath.Join(dir, "kubelet.key"))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode != 0o600 { // Windows has no modes
		t.Errorf("the key has mode %o", mode)
	}
	if _, err := dial(t, r.server.Addr().String(), tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	again := newRig(t, func(config *Config, _ *Parts) { config.TLS = TLS{CertDir: dir} })
	if second, err := dial(t, again.server.Addr().String(), 0); err != nil || !second.Equal(first) {
		t.Errorf("the next start shows another certificate (%v)", err)
	}
	_, _, err = selfSigned(dir, "node-1", time.Now().Add(360*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if third, err := dial(t, again.server.Addr().String(), 0); err != nil || third.Equal(first) {
		t.Errorf("a certificate that is about to expire was not replaced (%v)", err)
	}
}

func TestServingCertificateReload(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	ca := newAuthority(t, "serving CA")
	write := func(name string) {
		cert, key := ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}})
		for file, data := range map[string][]byte{certFile: cert, keyFile: key} {
			if err := replaceFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("first")
	r := newRig(t, func(config *Config, _ *Parts) { config.TLS = TLS{CertFile: certFile, KeyFile: keyFile} })
	for _, name := range []string{"first", "second", "broken"} {
		want := name
		switch name {
		case "second":
			write(name)
		case "broken":
			want = "second"
			if err := os.WriteFile(certFile, []byte("broken"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if cert, err := dial(t, r.server.Addr().String(), 0); err != nil || cert.Subject.CommonName != want {
			t.Errorf("%s: got %v, %v", name, cert, err)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"authentication.x509.clientCAFile": func(c *Config) { c.Authentication.ClientCAFile = filepath.Join(t.TempDir(), "none") },
		"tlsPrivateKeyFile":                func(c *Config) { c.TLS.CertFile = "x.crt" },
		"--cert-dir":                       func(c *Config) { c.TLS.CertDir = "" },
		"authorization.mode":               func(c *Config) { c.Authorization.Mode = "ABAC" },
		"cannot listen on":                 func(c *Config) { c.Address = "300.0.0.1:1" },
	} {
		config := Config{Address: "127.0.0.1:0", NodeName: "node-1", TLS: TLS{CertDir: t.TempDir()}, Authentication: Authentication{Anonymous: true}, Authorization: Authorization{Mode: AlwaysAllow}}
		change(&config)
		if _, err := New(config, Parts{Pods: newFakePods(), Engine: newFakeEngine()}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestProtocols(t *testing.T) {
	for want, suites := range map[int][]uint16{
		2: nil,
		1: {tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}, // without those that HTTP/2 requires
	} {
		r := newRig(t, func(config *Config, _ *Parts) { config.TLS.CipherSuites = suites })
		config := r.as("root")
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}
		response, err := (&http.Client{Transport: transport}).Get("https://" + r.server.Addr().String() + "/containerLogs/default/web/main")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		transport.CloseIdleConnections()
		if response.ProtoMajor != want || string(body) != "to stdout\nto stderr\n" {
			t.Errorf("got %s %s: %q, want HTTP/%d", response.Proto, response.Status, body, want)
		}
	}
}

func TestHealthz(t *testing.T) {
	health, err := NewHealthz(t.Context(), "127.0.0.1:0", Check{Name: "more", Check: func(context.Context) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- health.Run(ctx) }()
	for path, want := range map[string]string{"/healthz": "ok", "/healthz?verbose": "[+]ping ok\n[+]more ok\nhealthz check passed\n", "/pods": "404 page not found\n"} {
		response, err := http.Get("http://" + health.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if string(body) != want {
			t.Errorf("%s: got %q, want %q", path, body, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", health.Addr().String()); err == nil {
		conn.Close()
		t.Error("still listening after the end")
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestUpgradeAnswersShowNoSecret(t *testing.T) {
	r := newRig(t, nil)
	request, err := http.NewRequest("POST", "https://"+r.server.Addr().String()+"/exec/default/web/main?command=ls&output=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"nonsense"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}}
	response, err := r.http(r.as("token:root-token")).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 400 || strings.Contains(string(body), "root-token") {
		t.Errorf("got %d %s", response.StatusCode, body)
	}
}

// TestSlowClients: the server does not wait for clients that send a request byte by byte.
func TestSlowClients(t *testing.T) {
	r := newRig(t, func(config *Config, _ *Parts) { config.headerTimeout = 100 * time.Millisecond })
	for _, begin := range []string{"", "G", "GET /healthz HTTP/1.1\r\nHost: x\r\nX: "} {
		var conn *tls.Conn
		var err error
		for end := time.Now().Add(time.Minute); ; { // on a busy machine the handshake and the beginning may themselves be too slow
			if conn, err = tls.Dial("tcp", r.server.Addr().String(), &tls.Config{InsecureSkipVerify: true}); err == nil {
				if _, err = io.WriteString(conn, begin); err == nil {
					break
				}
				_ = conn.Close()
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = io.ReadAll(conn)
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Errorf("after %q the server went on waiting", begin)
		}
		_ = conn.Close()
	}
}

// TestOldTLS: 1.2 is the oldest accepted version, whatever the configuration, and a newer configured minimum is enforced.
func TestOldTLS(t *testing.T) {
	for _, test := range []struct {
		least, offered uint16
		want           bool
	}{
		{0, tls.VersionTLS11, false}, {tls.VersionTLS10, tls.VersionTLS11, false}, {0, tls.VersionTLS12, true},
		{tls.VersionTLS13, tls.VersionTLS12, false}, {tls.VersionTLS13, tls.VersionTLS13, true},
	} {
		r := newRig(t, func(config *Config, _ *Parts) { config.TLS.MinVersion = test.least })
		conn, err := tls.Dial("tcp", r.server.Addr().String(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: test.offered})
		if (err == nil) != test.want {
			t.Errorf("least %x, offered %x: %v", test.least, test.offered, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestCurves: only the configured key exchanges are accepted.
func TestCurves(t *testing.T) {
	r := newRig(t, func(config *Config, _ *Parts) { config.TLS.Curves = []tls.CurveID{tls.CurveP384} })
	for curve, want := range map[tls.CurveID]bool{tls.CurveP384: true, tls.X25519: false} {
		conn, err := tls.Dial("tcp", r.server.Addr().String(), &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{curve}})
		if (err == nil) != want {
			t.Errorf("%s: %v", curve, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestCipherSuites: with TLS 1.2 only the configured ones are accepted. (Those of 1.3 cannot be chosen in Go.)
func TestCipherSuites(t *testing.T) {
	r := newRig(t, func(config *Config, _ *Parts) {
		config.TLS.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}
	})
	for suite, want := range map[uint16]bool{
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384: true, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256: false, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256: false,
	} {
		conn, err := tls.Dial("tcp", r.server.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}})
		if (err == nil) != want {
			t.Errorf("%s: %v", tls.CipherSuiteName(suite), err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestSelfSignedIsRenewed: also in a process that lives longer than its certificate.
func TestSelfSignedIsRenewed(t *testing.T) {
	dir, clock := t.TempDir(), clocktesting.NewFakePassiveClock(time.Now())
	config, err := newTLSConfig(TLS{CertDir: dir}, "node-1", nil, nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	first, err1 := config.GetCertificate(nil)
	again, err2 := config.GetCertificate(nil)
	if err1 != nil || err2 != nil || first != again {
		t.Fatalf("%v, %v: not the same", err1, err2)
	}
	clock.SetTime(first.Leaf.NotAfter.Add(-selfSignedMargin + time.Hour))
	if next, err := config.GetCertificate(nil); err != nil || next == first {
		t.Errorf("not renewed: %v", err)
	}
}
