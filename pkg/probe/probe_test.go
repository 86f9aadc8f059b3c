package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fakeExecutor has one container. A command is "exit N" or "hang", and prints its other words.
type fakeExecutor struct{}

func (fakeExecutor) ExecSync(ctx context.Context, id string, argv []string, limit int) (int, []byte, error) {
	if id != "c1" {
		return 0, nil, fmt.Errorf("no container %s", id)
	}
	if argv[0] == "hang" {
		<-ctx.Done()
		return 0, nil, ctx.Err()
	}
	code, err := strconv.Atoi(argv[1])
	if argv[0] != "exit" || err != nil {
		return 0, nil, fmt.Errorf("cannot start %q", argv[0])
	}
	out := []byte(strings.Join(argv[2:], " "))
	return code, out[:min(len(out), limit)], nil
}

func httpTarget(t *testing.T, url string) (Target, intstr.IntOrString) {
	t.Helper()
	_, address, _ := strings.Cut(url, "://")
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return Target{ContainerID: "c1", PodIP: ap.Addr(), Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(ap.Port())}}}, intstr.FromInt32(int32(ap.Port()))
}

// run calls Probe and treats a warning as success.
func run(p *Prober, ctx context.Context, handler v1.ProbeHandler, target Target) (ok bool, detail string, err error) {
	result, err := p.Probe(ctx, handler, target)
	return err == nil && result.Outcome != Failure, result.Detail, err
}

func TestHTTP(t *testing.T) {
	var seen *http.Request
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		seen = r.Clone(context.Background())
		fmt.Fprint(w, "ok")
	})
	for _, code := range []int{200, 204, 399, 400, 500} {
		mux.HandleFunc(fmt.Sprintf("/%d", code), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	mux.Handle("/here", http.RedirectHandler("/200", http.StatusFound))
	mux.Handle("/herebad", http.RedirectHandler("/500", http.StatusFound))
	mux.Handle("/away", http.RedirectHandler("http://elsewhere.example/", http.StatusFound))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	mux.HandleFunc("/secret", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		fmt.Fprint(w, "password")
	})
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 3*maxOutput)) })
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, "after hints")
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", maxResponse+8<<10))
	})
	mux.HandleFunc("/hintsforever", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", strings.Repeat("x", 1000))
		for r.Context().Err() == nil {
			w.WriteHeader(http.StatusEarlyHints)
		}
	})
	plain := httptest.NewServer(mux)
	defer plain.Close()
	secure := httptest.NewTLSServer(mux)
	defer secure.Close()

	for _, test := range []struct {
		name   string
		path   string
		scheme v1.URIScheme
		server *httptest.Server
		want   Outcome
		detail string
	}{
		{name: "ok", path: "/", want: Success, detail: "ok"},
		{name: "no path", path: "", want: Success, detail: "ok"},
		{name: "query", path: "/x?a=b&c=%20d", want: Success, detail: "ok"},
		{name: "path that is no URL", path: "/%zz", want: Success, detail: "ok"},
		{name: "https", path: "/", scheme: v1.URISchemeHTTPS, server: secure, want: Success, detail: "ok"},
		{name: "https to http", path: "/", scheme: v1.URISchemeHTTPS, want: Failure, detail: "server gave HTTP response to HTTPS client"},
		{name: "http to https", path: "/", scheme: v1.URISchemeHTTP, server: secure, want: Failure, detail: "HTTP probe failed with statuscode: 400"},
		{name: "204", path: "/204", want: Success},
		{name: "399", path: "/399", want: Warning},
		{name: "400", path: "/400", want: Failure, detail: "HTTP probe failed with statuscode: 400"},
		{name: "body of a failure is not told", path: "/secret", want: Failure, detail: "HTTP probe failed with statuscode: 500"},
		{name: "redirect", path: "/here", want: Success},
		{name: "redirect to a failure", path: "/herebad", want: Failure, detail: "HTTP probe failed with statuscode: 500"},
		{name: "redirect to another host", path: "/away", want: Warning, detail: `Probe terminated redirects, Response body: <a href="http://elsewhere.example/">Found</a>.`},
		{name: "redirects without end", path: "/loop", want: Failure, detail: "stopped after 10 redirects"},
		{name: "early hints", path: "/hints", want: Success, detail: "after hints"},
		{name: "headers without end", path: "/headers", want: Failure, detail: "unexpected EOF"},
		{name: "headers without end, encrypted", path: "/headers", scheme: v1.URISchemeHTTPS, server: secure, want: Failure, detail: "header"},
		{name: "hints without end", path: "/hintsforever", want: Failure, detail: "unexpected EOF"},
		{name: "hints without end, encrypted", path: "/hintsforever", scheme: v1.URISchemeHTTPS, server: secure, want: Failure, detail: ""},
		{name: "long body", path: "/long", want: Success, detail: strings.Repeat("x", maxOutput)},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := test.server
			if server == nil {
				server = plain
			}
			target, port := httpTarget(t, server.URL)
			got, err := New(fakeExecutor{}).HTTP(t.Context(), &v1.HTTPGetAction{Path: test.path, Port: port, Scheme: test.scheme}, target)
			if err != nil {
				t.Fatal(err)
			}
			if got.Outcome != test.want || !strings.Contains(got.Detail, test.detail) || len(got.Detail) > maxOutput || strings.Contains(got.Detail, "password") {
				t.Errorf("got %d %.200q, want %d %.200q", got.Outcome, got.Detail, test.want, test.detail)
			}
		})
	}

	t.Run("headers", func(t *testing.T) {
		target, _ := httpTarget(t, plain.URL)
		for _, test := range []struct {
			headers []v1.HTTPHeader
			want    string
		}{
			{nil, "agent=kube-probe/1.36 accept=*/* encoding= host=" + strings.TrimPrefix(plain.URL, "http://") + " x=[]"},
			{[]v1.HTTPHeader{{Name: "Host", Value: "web.example"}, {Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}},
				"agent=kube-probe/1.36 accept=*/* encoding= host=web.example x=[1 2]"},
			{[]v1.HTTPHeader{{Name: "User-Agent", Value: "me"}, {Name: "Accept", Value: ""}},
				"agent=me accept= encoding= host=" + strings.TrimPrefix(plain.URL, "http://") + " x=[]"},
		} {
			ok, _, err := run(New(nil), t.Context(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("web"), HTTPHeaders: test.headers}}, target)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			got := fmt.Sprintf("agent=%s accept=%s encoding=%s host=%s x=%v", seen.UserAgent(), seen.Header.Get("Accept"), seen.Header.Get("Accept-Encoding"), seen.Host, seen.Header["X-A"])
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		}
	})

	t.Run("no connection is kept", func(t *testing.T) {
		opened := 0
		server := httptest.NewUnstartedServer(mux)
		server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				opened++
			}
		}
		server.Start()
		target, port := httpTarget(t, server.URL)
		p := New(nil)
		for range 3 {
			if ok, detail, err := run(p, t.Context(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: port}}, target); !ok {
				t.Fatal(detail, err)
			}
		}
		server.Close() // waits until all connections are idle or closed
		if opened != 3 {
			t.Errorf("%d connections for 3 probes", opened)
		}
	})
}

// silent accepts connections and never answers.
func silent(t *testing.T) Target {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	target, _ := httpTarget(t, "tcp://"+listener.Addr().String())
	return target
}

func TestTimeouts(t *testing.T) {
	target := silent(t)
	for name, handler := range map[string]v1.ProbeHandler{
		"http": {HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("web")}},
		"grpc": {GRPC: &v1.GRPCAction{Port: target.Ports[0].ContainerPort}},
		"exec": {Exec: &v1.ExecAction{Command: []string{"hang"}}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		ok, detail, err := run(New(fakeExecutor{}), ctx, handler, target)
		cancel()
		if ok || err != nil || detail == "" {
			t.Errorf("%s: ok %v, detail %q, err %v; want a failure that says why", name, ok, detail, err)
		}
	}
}

func TestTCP(t *testing.T) {
	target := silent(t)
	port := intstr.FromInt32(target.Ports[0].ContainerPort)
	tcp := func(host string, port intstr.IntOrString, target Target) (bool, error) {
		ok, _, err := run(New(nil), t.Context(), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Host: host, Port: port}}, target)
		return ok, err
	}
	if ok, err := tcp("", port, target); !ok || err != nil {
		t.Error("open port:", ok, err)
	}
	if ok, err := tcp("localhost", intstr.FromString("web"), Target{Ports: target.Ports}); !ok || err != nil {
		t.Error("host and named port:", ok, err)
	}
	if ok, err := tcp("", intstr.FromString(port.String()), target); !ok || err != nil {
		t.Error("number as a string:", ok, err)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if ok, err := tcp("", intstr.FromInt(closed.Addr().(*net.TCPAddr).Port), target); ok || err != nil {
		t.Error("closed port:", ok, err)
	}
	for want, run := range map[string]func() (bool, error){
		`no port of the container is named "db"`: func() (bool, error) { return tcp("", intstr.FromString("db"), target) },
		"port 0: want 1 to 65535":                func() (bool, error) { return tcp("", intstr.FromInt32(0), target) },
		"port 65536: want 1 to 65535":            func() (bool, error) { return tcp("", intstr.FromInt32(65536), target) },
		"the pod has no address yet":             func() (bool, error) { return tcp("", port, Target{}) },
	} {
		if ok, err := run(); ok || err == nil || err.Error() != want {
			t.Errorf("got %v %v, want %s", ok, err, want)
		}
	}
}

// TestCloseIsOrderly: the server reads the end of the stream, not a reset, although our side keeps no socket.
func TestCloseIsOrderly(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	read := make(chan error)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			_, err = conn.Read(make([]byte, 1))
		}
		read <- err
	}()
	target, port := httpTarget(t, "tcp://"+listener.Addr().String())
	if ok, detail, err := run(New(nil), t.Context(), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port}}, target); !ok {
		t.Fatal(detail, err)
	}
	if err := <-read; err == nil || err.Error() != "EOF" {
		t.Errorf("the server read %v, want EOF", err)
	}
}

func TestExec(t *testing.T) {
	target := Target{ContainerID: "c1", Env: []string{"A=1", "B=x=y", "EMPTY="}}
	for _, test := range []struct {
		argv   []string
		ok     bool
		detail string
		err    string
	}{
		{argv: []string{"exit", "0", "fine"}, ok: true, detail: "fine"},
		{argv: []string{"exit", "3", "bad", "$(B)", "$$(B)", "$(C)", "$(EMPTY)$", "$A", "$("}, detail: "bad x=y $(B) $(C) $ $A $("},
		{argv: []string{"exit", "$(A)", strings.Repeat("y", 2*maxOutput)}, detail: strings.Repeat("y", maxOutput)},
		{argv: []string{"nothing", "0"}, err: `cannot start "nothing"`},
	} {
		ok, detail, err := run(New(fakeExecutor{}), t.Context(), v1.ProbeHandler{Exec: &v1.ExecAction{Command: test.argv}}, target)
		if ok != test.ok || detail != test.detail || (err == nil) != (test.err == "") || (err != nil && err.Error() != test.err) {
			t.Errorf("%.60q: got %v %.60q %v", test.argv, ok, detail, err)
		}
	}
	if _, _, err := run(New(fakeExecutor{}), t.Context(), v1.ProbeHandler{}, target); err == nil {
		t.Error("a probe without handler ran")
	}
}

// healthServer is upstream's health service; it records who called.
type healthServer struct {
	*health.Server
	agent string
}

func (h *healthServer) Check(ctx context.Context, in *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	h.agent = strings.Join(md["user-agent"], ",")
	if in.Service == "broken" {
		return nil, status.Error(codes.Internal, "out of order")
	}
	return h.Server.Check(ctx, in)
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), &healthServer{Server: health.NewServer()}
	service.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	service.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(server, service)
	go server.Serve(listener)
	defer server.Stop()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bare := grpc.NewServer()
	go bare.Serve(other)
	defer bare.Stop()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	name := func(s string) *string { return &s }
	for _, test := range []struct {
		name    string
		address string
		service *string
		ok      bool
		detail  string
	}{
		{"all", listener.Addr().String(), nil, true, "service healthy"},
		{"up", listener.Addr().String(), name("up"), true, "service healthy"},
		{"down", listener.Addr().String(), name("down"), false, `service unhealthy (responded with "NOT_SERVING")`},
		{"unknown", listener.Addr().String(), name("who"), false, "unknown service"},
		{"broken", listener.Addr().String(), name("broken"), false, "out of order"},
		{"no health service", other.Addr().String(), nil, false, "does not implement the gRPC health protocol"},
		{"no gRPC", web.Listener.Addr().String(), nil, false, "failed"},
		{"closed", closed.Addr().String(), nil, false, "cannot connect"},
	} {
		t.Run(test.name, func(t *testing.T) {
			target, port := httpTarget(t, "tcp://"+test.address)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			start := time.Now()
			ok, detail, err := run(New(nil), ctx, v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port.IntVal, Service: test.service}}, target)
			if ok != test.ok || err != nil || !strings.Contains(detail, test.detail) {
				t.Errorf("got %v %q %v, want %v %q", ok, detail, err, test.ok, test.detail)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v: a refused or closed connection must fail immediately", took)
			}
		})
	}
	if !strings.HasPrefix(service.agent, "kube-probe/1.36") {
		t.Errorf("user agent %q", service.agent)
	}
}

func TestResultOfContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	target := silent(t)
	for _, handler := range []v1.ProbeHandler{
		{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("web")}},
		{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("web")}},
		{GRPC: &v1.GRPCAction{Port: target.Ports[0].ContainerPort}},
	} {
		if ok, _, _ := run(New(fakeExecutor{}), ctx, handler, target); ok {
			t.Error("a probe succeeded after its time")
		}
	}
}
