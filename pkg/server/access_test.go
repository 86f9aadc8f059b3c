package server

import (
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// paths contains every path of upstream's kubelet, and some that do not exist.
var paths = []string{
	"/", "/unknown", "/podsandmore", "/healthzz",
	"/attach/default/web/main", "/attach/default/web/uid-web/main",
	"/checkpoint/default/web/main",
	"/configz", "/flagz", "/statusz",
	"/containerLogs/default/web/main",
	"/debug/flags/v", "/debug/pods", "/debug/pprof/cmdline",
	"/exec/default/web/main", "/exec/default/web/uid-web/main",
	"/healthz", "/healthz/log", "/healthz/ping", "/healthz/syncloop",
	"/logs/", "/logs/some/file",
	"/metrics", "/metrics/slis", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource",
	"/pods", "/pods/",
	"/portForward/default/web", "/portForward/default/web/uid-web",
	"/run/default/web/main", "/run/default/web/uid-web/main",
	"/runningpods", "/runningpods/",
	"/stats/", "/stats/summary",
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

func TestAttributes(t *testing.T) {
	var text strings.Builder
	for _, path := range paths {
		for _, method := range methods {
			verb, subs := attributes(method, path)
			fmt.Fprintf(&text, "%-8s %-40s verb=%q nodes/%s\n", method, path, verb, strings.Join(subs, " or nodes/"))
		}
	}
	golden(t, "attributes", text.String())
}

// TestAccess sends every method to every path with every kind of credential. The golden file shows the statuses; the rules for each credential are
// checked separately, so that a careless -update cannot grant access.
func TestAccess(t *testing.T) {
	r := newRig(t, nil)
	stranger := newAuthority(t, "another CA")
	foreign := r.as("")
	foreign.CertData, foreign.KeyData = stranger.client("root", "system:masters")
	expired, server := r.as(""), r.as("")
	past := time.Now().Add(-time.Minute)
	expired.CertData, expired.KeyData = r.ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "root"}, NotBefore: past.Add(-time.Hour), NotAfter: past,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	server.CertData, server.KeyData = r.ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "root"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	node := r.as("")
	node.CertData, node.KeyData = r.ca.client("system:node:node-2", "system:nodes")
	both := rest.CopyConfig(foreign)
	both.BearerToken = "root-token"
	credentials := []struct {
		name   string
		config *rest.Config
		check  func(status int) bool
	}{
		{"none", r.as(""), unauthorized},
		{"bad-cert", foreign, unauthorized},
		{"expired-cert", expired, unauthorized},
		{"server-cert", server, unauthorized},
		{"other-node", node, forbidden},
		{"cert-allowed", r.as("root"), served},
		{"cert-denied", r.as("stranger"), forbidden},
		{"cert-sar-error", r.as("broken"), func(status int) bool { return status == http.StatusInternalServerError }},
		{"bad-token", r.as("token:guess"), unauthorized},
		{"token-allowed", r.as("token:root-token"), served},
		{"token-denied", r.as("token:stranger-token"), forbidden},
		{"bad-cert+good-token", both, served},
		{"reader", r.as("token:good-token"), func(status int) bool { return status != http.StatusUnauthorized }},
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s %-40s", "", "")
	clients := make([]*http.Client, len(credentials))
	for i, credential := range credentials {
		clients[i] = r.http(credential.config)
		fmt.Fprintf(&text, " %s", credential.name)
	}
	text.WriteString("\n")
	for _, path := range paths {
		for _, method := range methods {
			fmt.Fprintf(&text, "%-8s %-40s", method, path)
			for i, credential := range credentials {
				status, body := r.do(clients[i], method, path, "")
				if !credential.check(status) {
					t.Errorf("%s %s with %s: %d %s", method, path, credential.name, status, body)
				}
				fmt.Fprintf(&text, " %-*d", len(credential.name), status)
			}
			text.WriteString("\n")
		}
	}
	golden(t, "access", trimLines(text.String()))
}

// rights are the subresources that grant access to paths with a prefix, from upstream's documentation of the kubelet's authorization (KEP-2862). They
// are repeated here, so that the product's table is not compared with itself.
var rights = []struct{ path, needs string }{
	{"/metrics", "metrics"}, {"/stats/", "stats"}, {"/logs/", "log"}, {"/checkpoint/", "checkpoint"}, {"/flagz", "configz"}, {"/statusz", "statusz"},
	{"/healthz/", "healthz proxy"}, {"/pods/", "pods proxy"}, {"/runningpods/", "pods proxy"}, {"/configz/", "configz proxy"},
	{"/", "proxy"},
}

// needs returns the subresources of nodes any of which grants access to path.
func needs(path string) []string {
	for _, right := range rights {
		if strings.HasPrefix(path+"/", strings.TrimSuffix(right.path, "/")+"/") {
			return strings.Fields(right.needs)
		}
	}
	return nil
}

// TestRights sends GET and POST requests to every path with the right to one subresource of nodes at a time: access matches upstream's, and a right
// to read does not allow changes. Commands and connections need "create" with GET too, which is stricter than upstream.
func TestRights(t *testing.T) {
	r := newRig(t, nil)
	var names []string // of users, and their tokens
	for _, sub := range []string{"metrics", "stats", "log", "healthz", "pods", "configz", "statusz", "checkpoint", "proxy", ""} {
		for _, verb := range []string{"get", "create"} {
			name := verb + "-" + cmp.Or(sub, "nodes")
			r.api.rules[name], r.api.tokens[name] = []string{verb + " " + sub}, name
			names = append(names, name)
		}
	}
	var text strings.Builder
	for _, path := range paths {
		for method, verb := range map[string]string{"GET": "get", "POST": "create"} {
			if segment := strings.Split(path, "/")[1]; slices.Contains([]string{"exec", "attach", "run", "portForward"}, segment) {
				verb = "create"
			}
			for _, name := range names {
				request, answer := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
				request.Header.Set("Authorization", "Bearer "+name)
				r.server.http.Handler.ServeHTTP(answer, request) // connections would be slow, and TestAccess covers them
				want := slices.ContainsFunc(needs(path), func(sub string) bool { return name == verb+"-"+sub })
				if served(answer.Code) != want {
					t.Errorf("%s %s with %s: %d %s", method, path, name, answer.Code, answer.Body)
				}
			}
		}
		fmt.Fprintf(&text, "%-36s nodes/%s\n", path, strings.Join(needs(path), " or nodes/"))
	}
	t.Logf("who may get or create one of these is served:\n%s", text.String())
}

func unauthorized(status int) bool { return status == http.StatusUnauthorized }
func forbidden(status int) bool    { return status == http.StatusForbidden }
func served(status int) bool       { return !unauthorized(status) && !forbidden(status) }

func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// FuzzPath: the authorized path is the served path: the pattern that serves a path begins with the authorized segment.
func FuzzPath(f *testing.F) {
	for _, path := range paths {
		f.Add(path)
	}
	for _, path := range []string{"/metrics/../exec/a/b/c", "/%65xec/a/b/c", "/metrics%2F..%2Fexec/a/b/c", "//exec/a/b/c", "/stats/%2e%2e/run/a/b/c", "/./pods"} {
		f.Add(path)
	}
	s := &Server{config: Config{Debugging: true, Profiling: true, DebugFlags: true}, checks: checks{pingCheck}}
	handler := http.NotFoundHandler()
	s.parts = Parts{Metrics: handler, MetricsCadvisor: handler, MetricsProbes: handler, MetricsResource: handler, StatsSummary: handler, DebugPods: handler, Configz: 1}
	mux := s.routes().(*http.ServeMux)
	f.Fuzz(func(t *testing.T, target string) {
		for _, method := range methods {
			request, err := http.NewRequest(method, "https://node"+target, nil)
			if err != nil || !strings.HasPrefix(target, "/") {
				return
			}
			handler, pattern := mux.Handler(request)
			if pattern == "" || fmt.Sprintf("%T", handler) == "*http.redirectHandler" {
				continue // 404, 405 or a redirect to a clean path, which is authorized separately
			}
			_, pattern, _ = strings.Cut(pattern, "/")
			wanted, _, _ := strings.Cut(pattern, "/")
			authorized, _, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
			if wanted != authorized {
				t.Errorf("%s %q is authorized as %q and served by %q", method, target, authorized, pattern)
			}
		}
	})
}
