package healthcheck

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

func TestHealthCheckNodePort(t *testing.T) {
	healthy := true
	ports := New(func() bool { return healthy })
	defer ports.Close()
	port := proxytest.FreePort(t)
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
		if err := ports.Sync(table(step.local), []proxy.ServiceName{name}); err != nil {
			t.Fatal(err)
		}
		code, body, weight := get()
		want := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"a\",\n\t\t\"name\": \"x\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", step.local, step.healthy)
		if code != step.code || body != want || weight != fmt.Sprint(step.local) {
			t.Errorf("%+v: %d, weight %s, %s", step, code, weight, body)
		}
	}
	if err := ports.Sync(&proxy.Table{}, nil); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := get(); code != 0 {
		t.Errorf("still answers %d", code)
	}
}

// TestPortTaken: a port that another program uses is an error of its Service only, and is served once it is free.
func TestPortTaken(t *testing.T) {
	taken, free := proxytest.FreePort(t), proxytest.FreePort(t)
	other, err := net.Listen("tcp", fmt.Sprintf(":%d", taken))
	if err != nil {
		t.Fatal(err)
	}
	a, b := proxy.ServiceName{Namespace: "a", Name: "a"}, proxy.ServiceName{Namespace: "a", Name: "b"}
	table := &proxy.Table{HealthChecks: []proxy.HealthCheck{{Service: a, Port: taken}, {Service: b, Port: free}}}
	ports := New(func() bool { return true })
	defer ports.Close()
	failed, rest := proxy.RouteErrors(ports.Sync(table, nil))
	if len(rest) > 0 || len(failed) != 1 || failed[0].Route.Service.ServiceName != a {
		t.Errorf("%v, %v", failed, rest)
	}
	_ = other.Close()
	if err := ports.Sync(table, []proxy.ServiceName{a}); err != nil {
		t.Error(err)
	}
	if len(ports.servers) != 2 {
		t.Errorf("%d ports are served", len(ports.servers))
	}
}
