// Package healthcheck serves the health check node ports: an external load balancer asks there whether this node has an
// endpoint of a Service with externalTrafficPolicy Local. They are HTTP servers of the proxy itself, whatever the back
// end.
//
//	Table.HealthChecks --Sync--> a server for each port --> 200 with local endpoints, else 503
package healthcheck

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy"
)

// Ports serves the health check node ports of this node. Use it from one goroutine.
type Ports struct {
	healthy func() bool
	servers map[proxy.ServiceName]*server
}

// server serves one port.
type server struct {
	service proxy.ServiceName
	port    uint16
	local   atomic.Int32
	healthy func() bool
	http    *http.Server
	done    chan struct{}
}

// New returns Ports that serve nothing yet. healthy reports whether the proxy keeps up; it must be safe for concurrent
// use.
func New(healthy func() bool) *Ports {
	return &Ports{healthy: healthy, servers: map[proxy.ServiceName]*server{}}
}

// Sync brings the ports of the changed Services to want; changed nil: of all. Idempotent. For each port that cannot be
// served it returns a *proxy.RouteError, joined.
func (p *Ports) Sync(want *proxy.Table, changed []proxy.ServiceName) error {
	if changed == nil {
		names := maps.Clone(p.servers)
		for _, check := range want.HealthChecks {
			names[check.Service] = nil
		}
		changed = slices.Collect(maps.Keys(names))
	}
	for _, name := range changed {
		check, ok := want.HealthCheckOf(name)
		if s := p.servers[name]; s != nil && (!ok || check.Port != s.port) {
			s.close()
			delete(p.servers, name)
		}
	}
	var errs []error
	for _, name := range changed {
		check, ok := want.HealthCheckOf(name)
		if !ok {
			continue
		}
		if p.servers[name] == nil {
			s, err := serve(check, p.healthy)
			if err != nil {
				route := proxy.Route{Service: proxy.ServicePortName{ServiceName: name}, Kind: proxy.NodePort, Protocol: "TCP"}
				errs = append(errs, &proxy.RouteError{Route: route, Err: err})
				continue
			}
			p.servers[name] = s
		}
		p.servers[name].local.Store(int32(check.LocalEndpoints))
	}
	return errors.Join(errs...)
}

// Close closes all servers and waits for them to end.
func (p *Ports) Close() {
	for name, s := range p.servers {
		s.close()
		delete(p.servers, name)
	}
}

func serve(check proxy.HealthCheck, healthy func() bool) (*server, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(check.Port))))
	if err != nil {
		return nil, fmt.Errorf("cannot listen on health check node port %d: %w", check.Port, err)
	}
	s := &server{service: check.Service, port: check.Port, healthy: healthy, done: make(chan struct{})}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { // close waits for it
		defer close(s.done)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "Health check node port ended", "service", s.service, "port", s.port)
		}
	}()
	return s, nil
}

func (s *server) close() {
	_ = s.http.Close()
	<-s.done
}

// ServeHTTP responds as upstream does: 200 with a local endpoint, else 503, with upstream's JSON and weight header.
func (s *server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
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
