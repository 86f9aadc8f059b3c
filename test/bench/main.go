// Command bench compares our kubelet on the lab cluster with the bare engine and with upstream's kubelet on containerd,
// in one run on one machine. It prints the figures and their ratios.
//
//	lab cluster and peer -> pods one at a time, pods together, idle, many, exec -> table
//
// With -only proxy it measures only the service proxy (package traffic), which needs no cluster; with -only kubelet,
// the rest. With -only csi it measures volumes of a CSI driver, which no other run does.
//
// It is not a test: a bad figure is not a failure.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/winkube/winkube/test/lab"
)

const (
	burstSize = 40
	bursts    = 5
	manySize  = 100
	oneByOne  = 20
	execs     = 40
	idleTime  = 60 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	if err := command(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs what the arguments select: the bench, or a part that runs as a separate process.
func command(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == execCommand {
		return execMain(ctx)
	}
	if len(os.Args) > 1 && proxyCommands()[os.Args[1]] != nil {
		return proxyCommands()[os.Args[1]](os.Args[2:])
	}
	only := flag.String("only", "", "measure one `part`: kubelet, csi, scrape, proxy or network")
	loads := flag.String("loads", "", "measure only these `loads` of the proxy: bulk,requests,connects,udp,dns,latency,memory")
	others := flag.String("beside", "", "paths of other builds of the proxy to measure too: `programs` with commas between them")
	network := flag.String("bare-network", "bridge", "`network` of the bare engine's containers: bridge, or none, which pods have whose interfaces the kubelet makes")
	flag.Parse()
	if !slices.Contains([]string{"", "kubelet", "csi", "scrape", "proxy", "network"}, *only) || flag.NArg() > 0 {
		return fmt.Errorf("unknown argument: -only=%s %s; want -only=kubelet, -only=csi, -only=scrape, -only=proxy or -only=network", *only, flag.Args())
	}
	if *network != "bridge" && *network != "none" {
		return fmt.Errorf("-bare-network: got %q, want bridge or none", *network)
	}
	root, err := lab.FindRoot()
	if err != nil {
		return err
	}
	if *only == "" || *only == "network" {
		if err := networkBench(ctx, root, os.Stdout); err != nil || *only != "" {
			return err
		}
	}
	if *only == "" || *only == "proxy" {
		list := func(text string) []string { return strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) }
		if err := proxyBench(ctx, root, list(*others), os.Stdout, list(*loads)); err != nil || *only != "" {
			return err
		}
	}
	return run(ctx, root, *only, *network)
}

// run compares the kubelet with its peers, or measures only a part: the cost of scrapes, alone, or csi.
func run(ctx context.Context, root, only, network string) error {
	alone := only == "scrape"
	cluster := lab.New(root, os.Stdout)
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	if !alone {
		if err := cluster.UpPeer(ctx); err != nil {
			return err
		}
		defer func() {
			if err := cluster.DownPeer(context.WithoutCancel(ctx)); err != nil {
				fmt.Fprintln(os.Stderr, "bench: cannot stop upstream's kubelet and containerd; run make down:", err)
			}
		}()
	}
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	node := cluster.Nodes[0]
	b := &bench{
		cluster: cluster,
		engine:  newEngine(node.EngineSocket(), network, lab.PauseImage, lab.SampleImage),
		ours:    newAgent(client, node),
	}
	if alone {
		return b.scrapeAlone(ctx)
	}
	b.upstream = newAgent(client, cluster.Peer)
	for _, agent := range b.agents() {
		if _, err := agent.pods.remove(ctx); err != nil {
			return err
		}
	}
	if only == "csi" {
		return b.csi(ctx)
	}
	return b.run(ctx)
}

// agent is a kubelet on its host.
type agent struct {
	host *lab.Host
	pods *pods
}

func newAgent(client kubernetes.Interface, host *lab.Host) *agent {
	return &agent{host: host, pods: &pods{client: client, node: host.Name, image: lab.SampleImage}}
}

func (a *agent) pid() (int, error) {
	pid, ok := a.host.Process("kubelet").PID()
	if !ok {
		return 0, fmt.Errorf("the kubelet of %s does not run: see its log %s, then run make up", a.host.Name, a.host.Process("kubelet").Log())
	}
	return pid, nil
}

// cpu returns the kubelet's CPU time so far.
func (a *agent) cpu() (time.Duration, error) {
	pid, err := a.pid()
	if err != nil {
		return 0, err
	}
	return cpuOf(pid)
}

func (a *agent) rss() (int64, error) {
	pid, err := a.pid()
	if err != nil {
		return 0, err
	}
	return rssOf(pid)
}

// bench has the three sides of one run.
type bench struct {
	cluster        *lab.Cluster
	engine         *engine
	ours, upstream *agent
}

func (b *bench) agents() []*agent { return []*agent{b.upstream, b.ours} }

func (b *bench) run(ctx context.Context) error {
	header()
	for _, phase := range []func(context.Context) error{b.one, b.burst, b.probed, b.exec} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// one measures pods one at a time, on the three sides in turn.
func (b *bench) one(ctx context.Context) error {
	var bare, second, create durations
	ready, gone := map[*agent]durations{}, map[*agent]durations{}
	for i := range oneByOne {
		err := b.inTurn(ctx, i, func() error {
			pod, err := b.engine.one(ctx)
			bare, second, create = append(bare, pod.total), append(second, pod.second), append(create, pod.create)
			return err
		}, func(agent *agent) error {
			took, err := agent.pods.run(ctx, fmt.Sprintf("one-%d", i), 1, false)
			if err != nil {
				return err
			}
			left, err := agent.pods.remove(ctx)
			ready[agent], gone[agent] = append(ready[agent], took...), append(gone[agent], left)
			return err
		})
		if err != nil {
			return err
		}
	}
	row("one at a time, create to Ready p50", ms, bare.at(0.5), ready[b.upstream].at(0.5), ready[b.ours].at(0.5))
	row("one at a time, create to Ready p99", ms, bare.at(0.99), ready[b.upstream].at(0.99), ready[b.ours].at(0.99))
	row("  of that the app container, p50", ms, second.at(0.5), 0, 0)
	row("  of that its creation, p50", ms, create.at(0.5), 0, 0)
	row("one at a time, delete to gone p50", ms, 0, gone[b.upstream].at(0.5), gone[b.ours].at(0.5))
	return nil
}

// inTurn measures the three sides one after the other, each on a quiet machine: an agent may still clean up when its pods are gone. Every other
// round goes backwards, so that none always follows the same other.
func (b *bench) inTurn(ctx context.Context, round int, bare func() error, of func(*agent) error) error {
	sides := []func() error{bare}
	for _, agent := range b.agents() {
		sides = append(sides, func() error { return of(agent) })
	}
	if round%2 == 1 {
		slices.Reverse(sides)
	}
	for _, side := range sides {
		if err := quiet(ctx); err != nil {
			return err
		}
		if err := side(); err != nil {
			return err
		}
	}
	return nil
}

// burst measures many pods started together, the agents' cost of starting them, and the cost of keeping them. The sides
// take turns several times; the median is reported.
func (b *bench) burst(ctx context.Context) error {
	var bare crowd
	ready, cpu, gone := map[*agent]*crowd{b.upstream: {}, b.ours: {}}, map[*agent]durations{}, map[*agent]durations{}
	for i := range bursts {
		err := b.inTurn(ctx, i, func() error {
			all, err := b.engine.burst(ctx, burstSize)
			bare.add(all)
			return err
		}, func(agent *agent) error {
			all, used, err := agent.burst(ctx, fmt.Sprintf("burst-%d", i))
			if err != nil {
				return err
			}
			if err := quiet(ctx); err != nil {
				return err
			}
			took, err := agent.pods.remove(ctx)
			ready[agent].add(all)
			cpu[agent], gone[agent] = append(cpu[agent], used), append(gone[agent], took)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := b.kept(ctx); err != nil {
		return err
	}
	at := func(name string, bare float64, of func(*agent) float64) {
		row(fmt.Sprintf("%d together, %s", burstSize, name), ms, bare, of(b.upstream), of(b.ours))
	}
	at("create to Ready p50", bare.p50.at(0.5), func(a *agent) float64 { return ready[a].p50.at(0.5) })
	at("create to Ready p99", bare.p99.at(0.5), func(a *agent) float64 { return ready[a].p99.at(0.5) })
	at("all Ready", bare.all.at(0.5), func(a *agent) float64 { return ready[a].all.at(0.5) })
	at("CPU of the kubelet", 0, func(a *agent) float64 { return cpu[a].at(0.5) })
	at("all gone (grace 1 s)", 0, func(a *agent) float64 { return gone[a].at(0.5) })
	return nil
}

// kept measures the cost of keeping pods without probes.
func (b *bench) kept(ctx context.Context) error {
	for _, agent := range b.agents() {
		if _, err := agent.pods.run(ctx, "kept", burstSize, false); err != nil {
			return err
		}
	}
	if err := b.idle(ctx, fmt.Sprintf("%d pods, no probes", burstSize)); err != nil {
		return err
	}
	for _, agent := range b.agents() {
		if _, err := agent.pods.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// crowd is the result of one burst: when half, nearly all and all of its pods were Ready.
type crowd struct{ p50, p99, all durations }

func (c *crowd) add(ready durations) {
	c.p50, c.p99, c.all = append(c.p50, ready.at(0.5)), append(c.p99, ready.at(0.99)), append(c.all, ready.at(1))
}

// burst creates many pods together. It returns when each became Ready, and the kubelet's CPU time in milliseconds until
// all were.
func (a *agent) burst(ctx context.Context, prefix string) (ready durations, used float64, err error) {
	before, err := a.cpu()
	if err != nil {
		return nil, 0, err
	}
	if ready, err = a.pods.run(ctx, prefix, burstSize, false); err != nil {
		return nil, 0, err
	}
	after, err := a.cpu()
	return ready, inMS(after - before), err
}

// probed measures pods that have a readiness probe each.
func (b *bench) probed(ctx context.Context) error {
	for _, agent := range b.agents() {
		if _, err := agent.pods.run(ctx, "probed", burstSize, true); err != nil {
			return err
		}
	}
	if err := b.idle(ctx, fmt.Sprintf("%d pods, HTTP probes", burstSize)); err != nil {
		return err
	}
	for _, agent := range b.agents() {
		if _, err := agent.pods.run(ctx, "many", manySize-burstSize, true); err != nil {
			return err
		}
	}
	if err := b.idle(ctx, fmt.Sprintf("%d pods, HTTP probes", manySize)); err != nil {
		return err
	}
	if err := b.scrape(ctx, b.agents()...); err != nil {
		return err
	}
	for _, agent := range b.agents() {
		if _, err := agent.pods.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// idle measures both kubelets and the shims of their pods during the same minute, while their pods do nothing.
func (b *bench) idle(ctx context.Context, what string) error {
	begin, share, rss, shims := map[*agent]time.Duration{}, map[*agent]float64{}, map[*agent]float64{}, map[*agent]float64{}
	var err error
	for _, agent := range b.agents() {
		if begin[agent], err = agent.cpu(); err != nil {
			return err
		}
	}
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, agent := range b.agents() {
		end, err := agent.cpu()
		if err != nil {
			return err
		}
		bytes, err := agent.rss()
		if err != nil {
			return err
		}
		of, err := shimsOf(agent.host.RunDir())
		if err != nil {
			return err
		}
		share[agent], rss[agent], shims[agent] = 100*(end-begin[agent]).Seconds()/idleTime.Seconds(), float64(bytes)/(1<<20), float64(of)/(1<<20)
	}
	row("kubelet CPU, idle, "+what, percent, 0, share[b.upstream], share[b.ours])
	row("kubelet RSS, "+what, mib, 0, rss[b.upstream], rss[b.ours])
	row("shims PSS, "+what, mib, 0, shims[b.upstream], shims[b.ours])
	return nil
}
