package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

func TestHook(t *testing.T) {
	var agents []string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents = append(agents, r.UserAgent()+" "+r.Header.Get("Authorization"))
		w.WriteHeader(500) // any response counts as success
	})
	plain := httptest.NewServer(handler)
	defer plain.Close()
	target, port := httpTarget(t, plain.URL)
	action := &v1.HTTPGetAction{Port: port, HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "Bearer x"}}}
	if fellBack, err := New(nil).Hook(t.Context(), action, target); fellBack || err != nil {
		t.Error(fellBack, err)
	}
	action.Scheme = v1.URISchemeHTTPS
	if fellBack, err := New(nil).Hook(t.Context(), action, target); !fellBack || err != nil {
		t.Error(fellBack, err)
	}
	if want := []string{"kube-lifecycle/1.36 Bearer x", "kube-lifecycle/1.36 "}; !reflect.DeepEqual(agents, want) {
		t.Errorf("the server saw %q, want %q", agents, want)
	}
	plain.Close()
	if _, err := New(nil).Hook(t.Context(), action, target); err == nil {
		t.Error("a hook to a closed port succeeded")
	}
}

// TestHookIsNotSentOn: a redirect of a hook to another host counts as a response and is not followed; one to the same host is followed.
func TestHookIsNotSentOn(t *testing.T) {
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen = append(seen, "elsewhere") }))
	defer other.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(other.URL, "http://"), ":")
	mux := http.NewServeMux()
	mux.Handle("/away", http.RedirectHandler("http://localhost:"+port+"/", http.StatusFound))
	mux.Handle("/here", http.RedirectHandler("/there", http.StatusFound))
	mux.HandleFunc("/there", func(http.ResponseWriter, *http.Request) { seen = append(seen, "there") })
	for _, server := range []*httptest.Server{httptest.NewServer(mux), httptest.NewTLSServer(mux)} {
		defer server.Close()
		target, number := httpTarget(t, server.URL)
		scheme, _, _ := strings.Cut(server.URL, ":")
		for _, path := range []string{"/away", "/here"} {
			action := &v1.HTTPGetAction{Path: path, Port: number, Scheme: v1.URIScheme(strings.ToUpper(scheme))}
			if _, err := New(nil).Hook(t.Context(), action, target); err != nil {
				t.Errorf("%s%s: %v", server.URL, path, err)
			}
		}
	}
	if want := []string{"there", "there"}; !reflect.DeepEqual(seen, want) {
		t.Errorf("requests went to %q, want %q", seen, want)
	}
}

// talker is a health service with an oversized response.
type talker struct {
	grpc_health_v1.UnimplementedHealthServer
	words string
}

func (h talker) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return nil, status.Error(codes.Internal, h.words)
}

// TestDetailIsBounded: container output is truncated, and shown as valid text.
func TestDetailIsBounded(t *testing.T) {
	long := strings.Repeat("x", 10*maxOutput)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, talker{words: long[:2*maxOutput]})
	go server.Serve(listener)
	defer server.Stop()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	go func() {
		for {
			conn, err := raw.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", long) // a header without a colon, which the error repeats
			conn.Close()
		}
	}()
	rawTarget, rawPort := httpTarget(t, "tcp://"+raw.Addr().String())
	target, port := httpTarget(t, "tcp://"+listener.Addr().String())
	for name, test := range map[string]struct {
		handler v1.ProbeHandler
		target  Target
		want    string // in the detail
	}{
		"exec": {v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"exit", "1", "a\xffb"}}}, target, "a\uFFFDb"},
		"http": {v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: rawPort}}, rawTarget, "malformed"},
		"grpc": {v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port.IntVal}}, target, "failed: rpc error"},
	} {
		result, err := New(fakeExecutor{}).Probe(t.Context(), test.handler, test.target)
		if err != nil || result.Outcome != Failure || len(result.Detail) > maxOutput || !strings.Contains(result.Detail, test.want) {
			t.Errorf("%s: %v, %v, %d bytes %.100q, want %q", name, err, result.Outcome, len(result.Detail), result.Detail, test.want)
		}
	}
	if _, err := New(nil).Hook(t.Context(), &v1.HTTPGetAction{Port: rawPort}, rawTarget); err == nil || len(err.Error()) > maxOutput {
		t.Errorf("a hook's error: %.100v", err)
	}
}
