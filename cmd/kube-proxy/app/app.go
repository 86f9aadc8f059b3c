// Package app is the proxy's command line: it turns flags into one kubeproxy.Config and runs the proxy with it. `proxy
// table` prints what would be served for a manifest, without a host.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	config "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/kubeproxy"
	"github.com/winkube/winkube/pkg/otherproxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/wake"
)

// Main runs the proxy with a command line and returns the exit code. Mistakes of the user give one line on stderr and
// code 1.
func Main(args []string) int {
	code := 0
	command := newCommand(&code, args)
	command.SetArgs(args)
	if err := command.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "proxy: %v (proxy --help lists the flags)\n", err)
		return 1
	}
	return code
}

// Command returns the command line with its flags and sub-commands, for the documentation.
func Command() *cobra.Command { return newCommand(new(int), nil) }

func newCommand(code *int, args []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "proxy",
		Short:         "Serves Kubernetes Services on a node, on Windows Server 2016 to 2025 and on Linux",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	fs := root.Flags()
	shown := &options{} // for --help and errors; run parses again, over the file
	setDefaults(&shown.config)
	shown.addFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) { f.Deprecated = "" }) // run prints the deprecation notes
	root.RunE = func(*cobra.Command, []string) error {
		if daemon.PrintVersion(os.Stdout, fs) {
			return nil
		}
		var err error
		*code, err = run(args)
		return err
	}
	root.AddCommand(newTableCommand(os.Stdin, os.Stdout))
	daemon.AddServiceCommand(root, service)
	return root
}

// collectAt is the default GOGC: the proxy produces little garbage compared with the state of a large cluster that it
// holds.
const collectAt = 50

// run checks everything that it can check without changing the host, then runs the proxy. A service that cannot start,
// for example because its configuration file is missing, ends as failed, so that the service manager restarts it.
func run(args []string) (int, error) {
	o, fs, err := parse(args)
	if fs == nil {
		return 1, err
	}
	if err != nil && (o.writeConfigTo != "" || o.initOnly || o.cleanup || !daemon.AsService(fs)) {
		return 1, err
	}
	if o.writeConfigTo != "" {
		return 0, o.writeConfig(fs)
	}
	if o.initOnly {
		return 0, o.check()
	}
	var w *wiring
	if err == nil {
		w, err = o.prepare(fs)
	}
	if err != nil && (o.cleanup || !daemon.AsService(fs)) {
		return 1, err
	}
	if o.cleanup {
		return daemon.Run(service.Name, fs, w.cleanup), nil
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	return daemon.Run(service.Name, fs, func(ctx context.Context) error {
		if err != nil { // what the service lacked may exist by now
			if o, fs, w, err = begin(args); err != nil {
				return err
			}
		}
		for _, note := range o.notes(fs, w.settings) {
			klog.InfoS(note)
		}
		addresses, err := w.open(ctx)
		if err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(ctx)
		if o.configPath != "" {
			group.Go(func() error {
				return untilChanged(ctx, o.configPath, o.file.Data, func() error { return recheck(args) })
			})
		}
		group.Go(func() error { return w.settings.serve(ctx, w.config, addresses, w.table) })
		return group.Wait()
	}), nil
}

// check refuses what this host cannot do.
func (o *options) check() error {
	facts, err := host.Read()
	if err != nil {
		return err
	}
	_, err = o.settings(facts)
	return o.file.Located(err)
}

// begin reads command line and configuration again.
func begin(args []string) (*options, *pflag.FlagSet, *wiring, error) {
	o, fs, err := parse(args)
	if err != nil {
		return o, fs, nil, err
	}
	w, err := o.prepare(fs)
	return o, fs, w, err
}

// wiring holds the parts of the proxy.
type wiring struct {
	settings *settings
	config   *rest.Config // nil for --cleanup
	table    routes.RoutingTable
	open     func(context.Context) (relay.Addresses, error) // opens the store of service addresses
	remove   func(context.Context) error
}

// prepare reads the host and changes nothing on it.
func (o *options) prepare(fs *pflag.FlagSet) (*wiring, error) {
	facts, err := host.Read()
	if err != nil {
		return nil, err
	}
	s, err := o.settings(facts)
	if err != nil {
		return nil, o.file.Located(err)
	}
	o.config.Mode = cmp.Or(o.config.Mode, config.ProxyMode(s.config.Mode))
	if s.config.Effective, err = o.effective(fs); err != nil {
		return nil, err
	}
	w := &wiring{settings: s, open: ownAddresses, remove: removeOwn}
	if s.serviceInterface != "" {
		named, err := addresses.New(s.serviceInterface)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", envInterface, err)
		}
		w.open = func(context.Context) (relay.Addresses, error) { return named, nil }
		w.remove = func(ctx context.Context) error { return holdNothing(ctx, named) }
	}
	if w.table, err = routes.NewRoutingTable(); err != nil || o.cleanup {
		return w, err
	}
	if w.config, err = o.clientConfig(); err == nil && o.rotateToken && w.config.BearerTokenFile == "" {
		err = fmt.Errorf("--rotate-token-file: kubeconfig %s names no tokenFile", o.config.ClientConnection.Kubeconfig)
	}
	return w, err
}

// cleanup removes what previous proxies left on this host.
func (w *wiring) cleanup(ctx context.Context) error {
	return errors.Join(w.settings.cleanup(ctx, newSystem()), w.remove(ctx), removeConnect(w.settings.connectCgroup), removePackets(ctx), untune(), routes.Cleanup(ctx, w.table), w.settings.tellKubelet(nil), forget(w.settings.windows))
}

// clientConfig returns the client configuration for the API server.
func (o *options) clientConfig() (*rest.Config, error) {
	c := o.config.ClientConnection
	out, err := kubeclient.Config(kubeclient.Options{Kubeconfig: c.Kubeconfig, Server: o.server(), UserAgent: daemon.UserAgent("kube-proxy"),
		QPS: c.QPS, Burst: int(c.Burst), ContentType: c.ContentType})
	if err == nil && c.Kubeconfig != "" && o.master != "" {
		out.Host = o.master // as upstream, the flag overrides the file
	}
	return out, err
}

// tellKubelet writes the problems with this host's routes to other nodes to a file, for the Node condition that only
// the kubelet may set.
func (s *settings) tellKubelet(problems []routes.Problem) error {
	file, err := report.OfHost(s.windows)
	if err != nil {
		return err
	}
	var list []report.Trouble
	for _, p := range problems {
		list = append(list, report.Trouble{Reason: p.Reason, Message: p.Message, To: p.To})
	}
	return file.Write(list)
}

// newRoutes returns the Manager of the routes to other nodes' pods; apiServers are the addresses at which this program
// reaches the API server.
func (s *settings) newRoutes(table routes.RoutingTable, facts *sharedFacts, problem func(routes.Problem), apiServers []netip.Addr) *routes.Manager {
	known := routes.Known{ClusterCIDRs: s.clusterCIDRs, APIServers: apiServers}
	return routes.New(routes.Config{Mode: s.mode, Node: s.config.Node.Name, Options: routes.Options{NextHop: s.nextHop, Tunnel4: s.windows, Known: known}},
		routes.Parts{Table: table, Clock: clock.RealClock{}, Facts: facts.Facts, Problem: problem, Here: s.tellKubelet, Pods: facts.podSetter(s.mode)})
}

// serve assembles the parts and runs them.
func (s *settings) serve(ctx context.Context, config *rest.Config, addresses relay.Addresses, table routes.RoutingTable) error {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	events, stop := kubeclient.Events(client, "kube-proxy", s.config.Node.Name, kubeclient.EventLimit{})
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.rotateToken {
		token := &kubeclient.TokenFile{Path: config.BearerTokenFile, Client: client, Clock: clock.RealClock{}}
		running.Go(func() { token.Run(ctx) })
	}
	hints, err := addresses.Changes(ctx)
	if err != nil {
		klog.InfoS("Cannot watch the host's addresses; their changes are found by the periodic comparison", "every", s.config.Resync, "reason", err.Error())
	}
	facts := newSharedFacts(s.windows, s.facts(addresses))
	sys := newSystem()
	merged := wake.New()
	joinHints(ctx, &running, merged, hints)
	if err := host.WatchNextHops(ctx, routes.Protocol, merged.Send); err != nil {
		klog.InfoS("Cannot watch the host's next hops; their changes are found by the periodic comparison", "every", s.config.Resync, "reason", err.Error())
	}
	if s.backEnd == byHNS {
		if err := sys.watchHNS(ctx, merged.Send); err != nil {
			klog.InfoS("Cannot watch HNS; its changes are found by the periodic comparison", "reason", err.Error())
		}
	}
	cfg := s.config
	cfg.Holders = s.holders(config.Host)
	base := kubeproxy.NewBase(s.config.Node, clock.RealClock{})
	tune(s.tracked) // before the back end, whose limits follow from the host's settings
	backEnd := s.newBackEnd(base, sys, addresses)
	defer backEnd.close()
	p, err := kubeproxy.New(cfg, kubeproxy.Parts{
		Client:  client,
		Base:    base,
		Backend: backEnd,
		Routes: s.newRoutes(table, facts, func(p routes.Problem) {
			events.Event(&v1.ObjectReference{Kind: "Node", Name: p.Node, UID: types.UID(p.Node)}, v1.EventTypeWarning, p.Reason, p.Message)
		}, apiServers(config.Host)),
		Hints:  merged,
		Host:   hostOf(addresses),
		Facts:  facts,
		Events: events,
		Clock:  clock.RealClock{},
	})
	if err != nil {
		return err
	}
	nodeEvent := func(kind, reason, message string) {
		events.Event(&v1.ObjectReference{Kind: "Node", Name: s.config.Node.Name, UID: types.UID(s.config.Node.Name)}, kind, reason, message)
	}
	running.Go(func() {
		kubeclient.FollowVersion(ctx, client, daemon.Kubernetes, clock.RealClock{}, nodeEvent)
	})
	// From here on, more of the host changes.
	s.setFirewall(ctx, sys)
	if s.backEnd != byConnect {
		if err := removeConnect(s.connectCgroup); err != nil { // they would keep handling connections with stale data
			klog.ErrorS(err, "Cannot remove BPF programs of a previous run")
		}
	}
	if s.backEnd != byPortProxy {
		if err := sys.removeRules(ctx); err != nil { // they would occupy the ports to relay
			klog.ErrorS(err, "Cannot remove port proxy rules of a previous run")
		}
	}
	if s.backEnd != byHNS {
		if err := s.removeBalancers(ctx, sys); err != nil {
			klog.ErrorS(err, "Cannot remove HNS load balancers of a previous run")
		}
	}
	running.Go(func() { warnOfOther(ctx, otherproxy.Look, s.ownBalancers(), nodeEvent) })
	return p.Run(ctx)
}
