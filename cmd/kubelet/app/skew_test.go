package app

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSkew: an upgrade asks the API server of the service's own flags.
func TestSkew(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"gitVersion":"v1.35.9"}`))
	}))
	defer server.Close()
	if err := skew([]string{"--api-servers=" + server.URL, "--v=2"}); err == nil || !strings.Contains(err.Error(), "has v1.35.9") {
		t.Errorf("an older API server: %v", err)
	}
	if err := skew([]string{"--api-servers=" + server.URL, "--config=/no/such/file"}); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("no such file: %v", err)
	}
}
