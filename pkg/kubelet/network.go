package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/containers"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/learn"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/report"
)

// newNetwork creates the part that maintains this node's pod network. A pod's DNS depends only on the Resolver's configuration.
func newNetwork(cfg Config, clients kubeclient.Clients, engine *docker.Engine, events events, settled *settled, cluster *learn.Cluster) (*network.Manager, error) {
	reports, err := report.OfHost(cfg.Platform.OS == "windows")
	if err != nil {
		klog.ErrorS(err, "Cannot find the file in which the proxy reports broken routes; the Node will not show them")
	}
	plugins, err := cniPlugins(cfg)
	if err != nil {
		return nil, err
	}
	dns := cfg.Resolver
	dns.HostIPs, dns.Cluster = func() []netip.Addr { return cfg.NodeIPs }, cluster
	return network.New(cfg.Network, network.Parts{
		Engine: networkEngine{engine.Networks, engine.Containers, engine}, Host: hostnet.Noting(network.ForwardingFileIn(cfg.RootDir)), Windows: hostnet.Windows(), Clock: clock.RealClock{},
		Reports: reports, Plugins: plugins, PodLinks: hostnet.PodLinks(), Node: networkNode{events, settled, annotator(clients.Main, cfg.NodeName)}, Pods: networkPods{events, dns},
		Prober:  networkProber{probeServer(clients.Server), probePods(cfg.Server.Address)},
		Cluster: cluster,
	})
}

// cniPlugins are the plugins that create the pods' network; nil in other modes.
func cniPlugins(cfg Config) (network.Plugins, error) {
	if cfg.Network.Mode != network.CNI {
		return nil, nil
	}
	return cni.New(cni.Config{ConfDir: cfg.Network.ConfDir, BinDirs: cfg.CNIBin, StateDir: cni.StateIn(cfg.RootDir), WindowsBuild: cfg.Platform.Build})
}

// networkNode adapts the Node to package network.
type networkNode struct {
	events   events
	settled  *settled
	annotate func(context.Context, map[string]*string) error
}

func (n networkNode) Annotate(ctx context.Context, changes map[string]*string) error {
	return n.annotate(ctx, changes)
}

// Event sends an Event about the Node for the pod network, and triggers a comparison of the Node's status.
func (n networkNode) Event(kind, reason, message string) {
	n.events.NodeEvent(kind, reason, message)
	n.settled.node.Send()
}

func (n networkNode) NetworkChanged(ready error) { n.settled.changed(ready) }

// networkPods adapts the pods to package network.
type networkPods struct {
	events events
	config start.Config
}

func (p networkPods) DNS(of *v1.Pod) (pod.DNS, error) { return p.config.DNS(of) }

func (p networkPods) Event(namespace, name, uid, kind, reason, message string) {
	p.events.PodEvent(namespace, name, uid, kind, reason, message)
}

// networkProber sends the probe packets of package network.
type networkProber struct {
	server func(ctx context.Context, from netip.Addr) error
	pods   func(ctx context.Context, from netip.Addr, to netip.Prefix) error
}

func (p networkProber) ToServer(ctx context.Context, from netip.Addr) error {
	return p.server(ctx, from)
}

func (p networkProber) ToPods(ctx context.Context, from netip.Addr, to netip.Prefix) error {
	return p.pods(ctx, from, to)
}

// networkEngine adapts the engine to package network.
type networkEngine struct {
	*networks.Store
	*containers.Runtime
	engine *docker.Engine
}

// Version implements network.Engine. It starts with the engine's release number, whatever the engine calls itself. Otherwise other nodes'
// pods would be unreachable, because engines from 28 on need an option for them.
func (e networkEngine) Version(ctx context.Context) (string, error) {
	return e.engine.Client.ReleaseVersion(ctx)
}

// annotator writes annotations of the Node name and removes those with nil values. A node may write only its own Node object.
func annotator(client clientset.Interface, name string) func(context.Context, map[string]*string) error {
	return func(ctx context.Context, changes map[string]*string) error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": changes}})
		if err != nil {
			return err
		}
		_, err = client.Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

// probeServer connects to the API server from a given address, as a pod would: all pods need this route, and it is the only one that a node
// can know.
func probeServer(at *url.URL) func(context.Context, netip.Addr) error {
	return func(ctx context.Context, from netip.Addr) error {
		port := at.Port()
		if port == "" {
			port = map[string]string{"http": "80"}[at.Scheme]
		}
		dialer := net.Dialer{Timeout: 5 * time.Second}
		server, err := netip.ParseAddr(at.Hostname())
		if from.IsValid() && (err != nil || !server.IsLoopback() && server.Is4() == from.Is4()) {
			dialer.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
		}
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), cmp.Or(port, "443")))
		if err != nil {
			return fmt.Errorf("the API server does not answer a packet from the pods' gateway: %w", err)
		}
		return conn.Close()
	}
}

// probePods connects from a given address to another node, at the address of its pods' gateway: the first of their range or, in HNS
// networks, the second. Kubelets listen there, usually on the port of served. A refused connection also proves the route.
func probePods(served string) func(ctx context.Context, from netip.Addr, to netip.Prefix) error {
	_, port, err := net.SplitHostPort(served)
	if err != nil {
		port = "10250"
	}
	return func(ctx context.Context, from netip.Addr, to netip.Prefix) error {
		dialer := net.Dialer{Timeout: 3 * time.Second}
		if from.IsValid() {
			dialer.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
		}
		var errs []error
		for _, at := range []netip.Addr{to.Masked().Addr().Next(), to.Masked().Addr().Next().Next()} {
			conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.String(), port))
			if err == nil {
				return conn.Close()
			}
			if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, refusedOnWindows) {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
}

// refusedOnWindows is WSAECONNREFUSED.
const refusedOnWindows = syscall.Errno(10061)
