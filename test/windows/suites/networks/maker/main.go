// Command maker creates this host's pod network like the kubelet, with real calls of HNS and IP Helper and with a file in place of the engine. It
// runs until the given number of comparisons succeeded. It exits with 1 if that takes more than a minute.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/report"
)

func main() {
	var mode, kind, node, adapter, service, file string
	var build, comparisons int
	flag.StringVar(&mode, "mode", "", "network mode")
	flag.StringVar(&kind, "kind", "", "kind of network on Windows")
	flag.StringVar(&node, "node-ip", "", "address of the node")
	flag.StringVar(&adapter, "interface", "", "network adapter")
	flag.StringVar(&service, "service-cidr", "10.96.0.0/16", "range of services")
	flag.StringVar(&file, "engine", "", "file with the engine's networks")
	flag.IntVar(&build, "build", 0, "of Windows")
	flag.IntVar(&comparisons, "comparisons", 1, "how often all must be right")
	flag.Parse()
	cfg := network.Config{Mode: network.Mode(mode), Platform: pod.Platform{OS: "windows", Build: build, SharedNetwork: true}, Windows: network.WindowsNetwork(kind), Adapter: adapter,
		NodeIPs: []netip.Addr{netip.MustParseAddr(node)}, Services: []netip.Prefix{netip.MustParsePrefix(service)}, UplinkFile: file + ".uplink"}
	if err := run(cfg, engine{file}, comparisons); err != nil {
		fmt.Println("maker:", err)
		os.Exit(1)
	}
}

func run(cfg network.Config, e engine, comparisons int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	w := &watcher{ready: make(chan error, 100)}
	m, err := network.New(cfg, network.Parts{Engine: e, Host: hostnet.New(), Windows: hostnet.Windows(), Clock: clock.RealClock{}, Node: w, Pods: pods{}, Prober: w, Reports: w})
	if err != nil {
		return err
	}
	m.SetNode(&v1.Node{Spec: v1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}})
	ended := make(chan error, 1)
	inner, stop := context.WithCancel(ctx)
	go func() { ended <- m.Run(inner) }()
	for comparisons > 0 {
		select {
		case last := <-w.ready:
			if last == nil {
				comparisons--
				m.Kick()
			}
		case <-ctx.Done():
			stop()
			return errors.Join(<-ended, m.Ready(), ctx.Err())
		}
	}
	stop()
	return <-ended
}

// watcher receives what the network reports.
type watcher struct{ ready chan error }

func (w *watcher) Annotate(context.Context, map[string]*string) error { return nil }
func (w *watcher) NetworkChanged(err error)                           { w.ready <- err }
func (w *watcher) Event(kind, reason, message string)                 { fmt.Println(kind, reason, message) }

func (w *watcher) ToServer(context.Context, netip.Addr) error             { return nil }
func (w *watcher) ToPods(context.Context, netip.Addr, netip.Prefix) error { return nil }
func (w *watcher) Read() ([]report.Trouble, error)                        { return nil, nil }
func (w *watcher) Watch(ctx context.Context, _ func()) error              { <-ctx.Done(); return nil }

// pods reports no pods.
type pods struct{}

func (pods) DNS(*v1.Pod) (pod.DNS, error) { return pod.DNS{}, nil }
func (pods) Event(namespace, name, uid, kind, reason, message string) {
	fmt.Println(kind, reason, message)
}

// engine is a container engine without containers. It keeps its networks in a file.
type engine struct{ file string }

func (e engine) Version(context.Context) (string, error)                     { return "20.10.24", nil }
func (e engine) Existing(context.Context, []string) (map[string]bool, error) { return nil, nil }
func (e engine) Stop(context.Context, string) error                          { return nil }
func (e engine) Members(context.Context, string) (map[string][]netip.Addr, error) {
	return nil, nil
}
func (e engine) Connect(context.Context, string, string, []netip.Addr) error { return nil }

func (e engine) Networks(context.Context) (list []pod.EngineNetwork, err error) {
	text, err := os.ReadFile(e.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	return list, err
}

func (e engine) write(list []pod.EngineNetwork) error {
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return os.WriteFile(e.file, text, 0o644)
}

func (e engine) EnsureNetwork(ctx context.Context, want pod.EngineNetwork) error {
	list, err := e.Networks(ctx)
	for _, n := range list {
		if n.Name == want.Name {
			return errors.New("there is a network " + strconv.Quote(n.Name))
		}
	}
	return errors.Join(err, e.write(append(list, want)))
}

func (e engine) RemoveNetwork(ctx context.Context, name string) error {
	return errors.New("network " + name + " was to be removed")
}
