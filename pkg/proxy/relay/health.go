package relay

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy"
)

// healthChecks serves the health check node ports: a load balancer outside asks there whether this node has an endpoint of a Service with
// externalTrafficPolicy Local.
type healthChecks struct {
	healthy func() bool
	servers map[proxy.ServiceName]*healthServer
}

type healthServer struct {
	service proxy.ServiceName
	port    uint16
	local   atomic.Int32
	healthy func() bool
	server  *http.Server
	done    chan struct{}
}

func newHealthChecks(healthy func() bool) *healthChecks {
	if healthy == nil {
		healthy = func() bool { return true }
	}
	return &healthChecks{healthy: healthy, servers: map[proxy.ServiceName]*healthServer{}}
}

// sync serves the ports of the changed Services as want says.
func (h *healthChecks) sync(want *proxy.Table, changed []proxy.ServiceName) []error {
	for _, name := range changed {
		check, ok := want.HealthCheckOf(name)
		if s := h.servers[name]; s != nil && (!ok || check.Port != s.port) {
			s.close()
			delete(h.servers, name)
		}
	}
	var errs []error
	for _, name := range changed {
		check, ok := want.HealthCheckOf(name)
		if !ok {
			continue
		}
		if h.servers[name] == nil {
			s, err := newHealthServer(check, h.healthy)
			if err != nil {
				route := proxy.Route{Service: proxy.ServicePortName{ServiceName: name}, Kind: proxy.NodePort, Protocol: "TCP"}
				errs = append(errs, &proxy.RouteError{Route: route, Err: err})
				continue
			}
			h.servers[name] = s
		}
		h.servers[name].local.Store(int32(check.LocalEndpoints))
	}
	return errs
}

func (h *healthChecks) close() {
	for name, s := range h.servers {
		s.close()
		delete(h.servers, name)
	}
}

func newHealthServer(check proxy.HealthCheck, healthy func() bool) (*healthServer, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(check.Port))))
	if err != nil {
		return nil, fmt.Errorf("cannot listen on health check node port %d: %w", check.Port, err)
	}
	s := &healthServer{service: check.Service, port: check.Port, healthy: healthy, done: make(chan struct{})}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.done)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "Health check node port ended", "service", s.service, "port", s.port)
		}
	}()
	return s, nil
}

func (s *healthServer) close() {
	_ = s.server.Close()
	<-s.done
}

// ServeHTTP answers as upstream does (200 with a local endpoint, else 503), in its JSON and with its header of the weight.
func (s *healthServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	count, healthy := s.local.Load(), s.healthy()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(int(count)))
	if count == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
		s.service.Namespace, s.service.Name, count, healthy) // the client may be gone
}
