// Package kubeproxy is the whole proxy put together: the watch of Services, EndpointSlices and Nodes feeds the loop and the routes, the
// loop drives a back end, and two small servers say how it goes.
//
//	API server --> proxy.Loop --> Backend       Nodes --> Routes        /healthz :10256       /metrics, /debug/table :10249
package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/healthcheck"
)

// Config is the configuration of a Proxy.
type Config struct {
	Node       proxy.NodeInfo
	Holders    proxy.Holders  // the holders of addresses beside Services, as known from the start
	Healthz    netip.AddrPort // the zero value: not served
	Metrics    netip.AddrPort // the zero value: not served
	Mode       string         // for /proxyMode
	Profiling  bool           // serve /debug/pprof
	ConfigSync time.Duration  // how often the caches of the API server's objects are handed over again
	Resync     time.Duration  // how often the whole host is compared
	Effective  any            // the KubeProxyConfiguration in use, for /configz; it must hold no secrets. nil: not served
}

// Routes keeps the way to the other nodes' pods until ctx ends; nodes is run by the caller.
type Routes interface {
	Run(ctx context.Context, nodes cache.SharedIndexInformer) error
}

// Facts keep what others of this host must know of the cluster's Services. Calls that change nothing are cheap.
type Facts interface {
	// SetServices is called with the ranges of service addresses before each Sync; none: they are not known.
	SetServices(ranges []netip.Prefix)
	// SetAPIServers is called with the addresses at which the Service of the API server is served, and those of its endpoints.
	SetAPIServers(addrs []netip.Addr)
}

// Parts are what the proxy works with.
type Parts struct {
	Client  kubernetes.Interface
	Base    *Base
	Backend proxy.Backend
	Routes  Routes                     // nil: none
	Hints   <-chan struct{}            // the host changed; may be nil
	Host    func() (proxy.Host, error) // reads what this host has; may be nil
	Facts   Facts                      // what the routes must know of Services
	Events  record.EventRecorder
	Clock   clock.WithTicker
}

// Base is what the proxy and its back ends are built on, made before them: how the proxy is, and where news for it goes.
type Base struct {
	Registry *prometheus.Registry
	Metrics  *proxy.Metrics
	Health   *proxy.Health // whether the proxy keeps up
	Inbox    *proxy.Inbox  // where back ends put warnings
}

// NewBase returns the Base of a proxy that has seen nothing yet.
func NewBase(node proxy.NodeInfo, clock clock.PassiveClock) *Base {
	b := &Base{Registry: prometheus.NewRegistry()}
	b.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b.Metrics = proxy.NewMetrics(b.Registry, node)
	b.Health = proxy.NewHealth(clock, node, b.Metrics)
	b.Inbox = proxy.NewInbox(b.Health, b.Metrics, clock)
	return b
}

// Proxy is the assembled proxy.
type Proxy struct {
	cfg    Config
	base   *Base
	checks *healthcheck.Ports
	loop   *proxy.Loop
	nodes  cache.SharedIndexInformer
	watch  *proxy.Watch
	routes Routes
}

// New puts the parts together. Nothing runs and nothing is touched yet.
func New(cfg Config, parts Parts) (*Proxy, error) {
	nodes, err := proxy.NodeInformer(parts.Client, cfg.ConfigSync)
	if err != nil {
		return nil, err
	}
	watch, err := proxy.NewWatch(parts.Base.Inbox, parts.Client, nodes, cfg.ConfigSync)
	if err != nil {
		return nil, err
	}
	checks := healthcheck.New(parts.Base.Health.Healthy)
	loop := proxy.NewLoop(proxy.LoopConfig{Node: cfg.Node, Inbox: parts.Base.Inbox, Backend: served{parts.Backend, checks, parts.Facts}, Health: parts.Base.Health,
		Metrics: parts.Base.Metrics, Resync: cfg.Resync, Hints: parts.Hints, Holders: cfg.Holders, Host: parts.Host, APIServers: parts.Facts.SetAPIServers,
		Events: parts.Events, Clock: parts.Clock})
	return &Proxy{cfg: cfg, base: parts.Base, checks: checks, loop: loop, nodes: nodes, watch: watch, routes: parts.Routes}, nil
}

// Run serves until ctx ends or a part fails. What is on the host then stays there, the back end is the caller's to close: connections between
// others go on, and the next proxy takes over.
func (p *Proxy) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	if err := p.start(ctx, group); err != nil {
		stop()
		return errors.Join(err, group.Wait())
	}
	err := group.Wait()
	p.checks.Close()
	return err
}

// start starts everything. The servers come first: an address that is taken ends the proxy before it has changed anything.
func (p *Proxy) start(ctx context.Context, group *errgroup.Group) error {
	if err := p.serve(ctx, group, "healthz", p.cfg.Healthz, p.base.Health.Handler()); err != nil {
		return err
	}
	if err := p.serve(ctx, group, "metrics", p.cfg.Metrics, p.debug()); err != nil {
		return err
	}
	group.Go(func() error { p.nodes.RunWithContext(ctx); return nil })
	group.Go(func() error { p.watch.Run(ctx); return nil })
	group.Go(func() error { return p.loop.Run(ctx, p.watch.Synced()) })
	if p.routes != nil {
		group.Go(func() error { return p.routes.Run(ctx, p.nodes) })
	}
	return nil
}

// serve opens an address now and serves it until ctx ends.
func (p *Proxy) serve(ctx context.Context, group *errgroup.Group, name string, addr netip.AddrPort, handler http.Handler) error {
	if !addr.IsValid() {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr.String())
	if err != nil {
		return fmt.Errorf("cannot serve --%s-bind-address: %w", name, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	klog.InfoS("Serving", "what", name, "address", listener.Addr())
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("cannot serve %s: %w", name, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return nil
}

// debug serves the metrics port, which is bound to loopback by default.
func (p *Proxy) debug() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(p.base.Registry, promhttp.HandlerOpts{}))
	mux.Handle("/healthz", p.base.Health.Handler())
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprint(w, p.cfg.Mode)
	})
	if p.cfg.Effective != nil {
		mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			if err := json.NewEncoder(w).Encode(map[string]any{"kubeproxy.config.k8s.io": p.cfg.Effective}); err != nil {
				klog.V(2).InfoS("Cannot answer /configz", "err", err)
			}
		})
	}
	mux.HandleFunc("/debug/table", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := p.loop.WriteTable(w); err != nil {
			klog.V(2).InfoS("Cannot answer /debug/table", "err", err)
		}
	})
	if p.cfg.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}
