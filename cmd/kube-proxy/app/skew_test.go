package app

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSkew: an upgrade asks the API server in the service's own flags.
func TestSkew(t *testing.T) {
	version := "v1.36.0"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"gitVersion":"` + version + `"}`))
	}))
	defer server.Close()
	if err := skew([]string{"--master=" + server.URL, "--v=2"}); err != nil {
		t.Error(err)
	}
	version = "v1.35.9"
	if err := skew([]string{"--master=" + server.URL}); err == nil || !strings.Contains(err.Error(), "has version v1.35.9") || !strings.Contains(err.Error(), "never newer") {
		t.Errorf("an older API server: %v", err)
	}
	for _, args := range [][]string{{"--no-such-flag"}, {"--master=" + server.URL, "--config=/no/such/file"}, {"--kubeconfig=/no/such/file"}} {
		if err := skew(args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
