package discovery

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const (
	good = "abcdef.0123456789abcdef"
	flag = "hash"
)

func TestParseToken(t *testing.T) {
	for _, text := range []string{"", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef ", "abcdef:0123456789abcdef"} {
		if _, err := ParseToken(text); err == nil || !strings.HasPrefix(err.Error(), "--token: ") || !strings.Contains(err.Error(), "want one such as") {
			t.Errorf("%q: %v", text, err)
		}
	}
	hash := "K10" + strings.Repeat("0a", 32) + "::" // https://docs.k3s.io/cli/token, https://docs.rke2.io/security/token
	for _, text := range []string{hash + "server:5ecre7", hash + "node:5ecre7", hash + "5ecre7", hash + good, "K10"} {
		if _, err := ParseToken(text); err == nil || !strings.Contains(err.Error(), "of a token of k3s or RKE2, which is for their own agents; want credentials from their cluster: --kubeconfig and --proxy-kubeconfig") ||
			strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "5ecre7") || strings.Contains(err.Error(), good) {
			t.Errorf("%q: %v", text, err)
		}
	}
	token, err := ParseToken(good)
	if err != nil || token.Bearer() != good {
		t.Fatalf("%v, %v", token, err)
	}
	for _, shown := range []string{fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s", token, token, token, token)} {
		if strings.Contains(shown, "0123456789abcdef") || !strings.Contains(shown, "abcdef.") {
			t.Errorf("it is shown as %q", shown)
		}
	}
}

func TestParsePins(t *testing.T) {
	digits := strings.Repeat("0a", 32)
	for text, want := range map[string]string{"": "--hash=: want sha256:", digits: "--hash=" + digits, "sha1:" + digits: "--hash=sha1", "sha256:0a": "64 hexadecimal digits", "sha256:" + strings.Repeat("x", 64): "want sha256:"} {
		if _, err := ParsePins(flag, []string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := ParsePins(flag, nil); err == nil || !strings.Contains(err.Error(), "--hash is missing") {
		t.Errorf("none: %v", err)
	}
	pins, err := ParsePins(flag, []string{"SHA256:" + strings.ToUpper(digits)})
	if err != nil || pins[0].String() != "sha256:"+digits {
		t.Errorf("%v, %v", pins, err)
	}
}

func TestParseServer(t *testing.T) {
	for text, want := range map[string]string{"10.0.0.1:6443": "10.0.0.1:6443", "api.example.com": "api.example.com:6443", "[fd00::1]:443": "[fd00::1]:443", "fd00::1": "[fd00::1]:6443",
		"": "", "https://10.0.0.1:6443": "", "10.0.0.1:0": "", "10.0.0.1:99999": "", "a b:1": "", "10.0.0.1:6443/x": ""} {
		got, err := ParseServer(text)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "want host:port") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestNotPublic: k3s and RKE2 refuse anonymous requests. The error says what works there, and the token stays here.
func TestNotPublic(t *testing.T) {
	sent := ""
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent += r.Header.Get("Authorization")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	token, err := ParseToken(good)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Find(t.Context(), server.Listener.Addr().String(), token, flag, []Pin{{1}})
	const want = "it answers 401 Unauthorized for ConfigMap kube-public/cluster-info; want an API server that lets new nodes read it, as kubeadm sets it up, or --kubeconfig"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || sent != "" {
		t.Errorf("%v, want %q; it was sent %q", err, want, sent)
	}
}
