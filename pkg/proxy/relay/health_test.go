package relay

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/winkube/winkube/pkg/proxy"
)

func TestHealthCheckNodePort(t *testing.T) {
	h := newTestHost(t)
	healthy := true
	h.relay.health.healthy = func() bool { return healthy }
	port := closedPort(t).Port()
	name := proxy.ServiceName{Namespace: "a", Name: "x"}
	get := func() (int, string, string) {
		t.Helper()
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return 0, "", ""
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body), response.Header.Get("X-Load-Balancing-Endpoint-Weight")
	}
	table := func(local int) *proxy.Table {
		return &proxy.Table{HealthChecks: []proxy.HealthCheck{{Service: name, Port: port, LocalEndpoints: local}}}
	}
	for _, step := range []struct {
		local   int
		healthy bool
		code    int
	}{{2, true, 200}, {0, true, 503}, {1, false, 503}, {1, true, 200}} {
		healthy = step.healthy
		if err := h.relay.Sync(t.Context(), table(step.local), []proxy.ServiceName{name}); err != nil {
			t.Fatal(err)
		}
		code, body, weight := get()
		want := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"a\",\n\t\t\"name\": \"x\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", step.local, step.healthy)
		if code != step.code || body != want || weight != fmt.Sprint(step.local) {
			t.Errorf("%+v: %d, weight %s, %s", step, code, weight, body)
		}
	}
	h.mustSync(t)
	if code, _, _ := get(); code != 0 {
		t.Errorf("still answers %d", code)
	}
}
