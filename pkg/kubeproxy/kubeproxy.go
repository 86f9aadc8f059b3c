// Package kubeproxy assembles the proxy: the watch of Services, EndpointSlices and Nodes feeds the loop and the routes,
// the loop drives a back end, and two small servers report health and metrics.
//
//	API server --> proxy.Loop --> Backend       Nodes --> Routes        /healthz :10256       /metrics, /debug/table :10249
package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/healthcheck"
)

// Config is the configuration of a Proxy.
type Config struct {
	Node       proxy.NodeInfo
	Holders    proxy.Holders  // address holders other than Services, known at start
	Healthz    netip.AddrPort // the zero value: not served
	Metrics    netip.AddrPort // the zero value: not served
	Mode       string         // for /proxyMode
	Profiling  bool           // serve /debug/pprof
	ConfigSync time.Duration  // resync period of the informers
	Resync     time.Duration  // interval between full comparisons with the host
	Effective  any            // the KubeProxyConfiguration in use, for /configz; it must hold no secrets. nil: not served
}

// Routes maintains the routes to other nodes' pods until ctx ends. The caller runs nodes.
type Routes interface {
	Run(ctx context.Context, nodes cache.SharedIndexInformer) error
}

// Facts pass what is known of the cluster's Services to other parts of this host. Calls that change nothing are cheap.
type Facts interface {
	// SetServices is called with the ranges of service addresses before each Sync; none: they are not known.
	SetServices(ranges []netip.Prefix)
	// SetAPIServers is called with the addresses of the API server's Service and of its endpoints.
	SetAPIServers(addrs []netip.Addr)
}

// Parts are the dependencies of a Proxy.
type Parts struct {
	Client  clientset.Interface
	Base    *Base
	Backend proxy.Backend
	Routes  Routes
	Hints   <-chan struct{}            // the host changed; may be nil
	Host    func() (proxy.Host, error) // reads this host's addresses and ports; may be nil
	Facts   Facts                      // receives facts about Services for the routes
	Events  record.EventRecorder
	Clock   clock.WithTicker
}

// Base is what the proxy and its back ends share, created before them: metrics, health and the inbox for warnings.
type Base struct {
	Registry *prometheus.Registry
	Metrics  *proxy.Metrics
	Health   *proxy.Health // whether the proxy keeps up with changes
	Inbox    *proxy.Inbox  // where back ends put warnings
}

// NewBase returns the Base of a proxy that has seen no objects yet.
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

// New assembles the parts. It starts nothing and changes nothing on the host.
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

// Run serves until ctx ends or a part fails. It leaves what it wrote on the host, and the caller closes the back end:
// existing connections continue, and the next proxy takes over.
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

// start starts all parts. The servers come first: if an address is in use, the proxy ends before it has changed
// anything.
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
	group.Go(func() error { return p.routes.Run(ctx, p.nodes) })
	return nil
}

// serve listens on addr before it returns and serves until ctx ends.
func (p *Proxy) serve(ctx context.Context, group *errgroup.Group, name string, addr netip.AddrPort, handler http.Handler) error {
	if !addr.IsValid() {
		return nil
	}
	listener, err := daemon.Listen(ctx, addr.String())
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
