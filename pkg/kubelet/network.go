package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/report"
)

// newNetwork makes the part that keeps this node's pod network. A pod's DNS follows from the Resolver's configuration alone.
func newNetwork(cfg Config, client kubernetes.Interface, engine *docker.Engine, events events, settled *settled) (*network.Manager, error) {
	dns, asked := cfg.Resolver, networkEngine{engine}
	dns.HostIPs = func() []netip.Addr { return cfg.NodeIPs }
	parts := network.Parts{Engine: engine, EngineVersion: asked.version, Changed: settled.changed, Containers: asked.containers, DNS: dns.DNS,
		Annotate: annotator(client, cfg.NodeName), Event: networkEvents{events, settled}.event, PodEvent: events.PodEvent,
		Probe: probeServer(client), ProbeTo: probePods(cfg.Server.Address)}
	if way, err := report.OfHost(cfg.Platform.OS == "windows"); err == nil {
		parts.Way = way
	} else {
		klog.ErrorS(err, "Cannot read what the proxy reports of its routes")
	}
	if cfg.Network.Mode == network.CNI {
		plugins, err := cni.New(cni.Config{ConfDir: cfg.Network.ConfDir, BinDirs: cfg.CNIBin, StateDir: filepath.Join(cfg.RootDir, "cni")})
		if err != nil {
			return nil, err
		}
		parts.Plugins = plugins
	}
	return network.New(cfg.Network, parts)
}

// networkEvents sends what concerns the pod network as Events about the Node, whose status may be another.
type networkEvents struct {
	events  events
	settled *settled
}

func (n networkEvents) event(kind, reason, message string) {
	n.events.NodeEvent(kind, reason, message)
	n.settled.node.Send()
}

// networkEngine is the engine in the words of package network.
type networkEngine struct{ *docker.Engine }

func (e networkEngine) version(ctx context.Context) (string, error) {
	info, err := e.Info(ctx)
	if err != nil {
		return "", err
	}
	return info.Version, nil
}

// containers are the ids of all that the engine has of pods.
func (e networkEngine) containers(ctx context.Context) (map[string]bool, error) {
	all, err := e.ObserveAll(ctx)
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, observed := range all {
		for _, s := range observed.Sandboxes {
			ids[s.ID] = true
		}
		for _, c := range observed.Containers {
			ids[c.ID] = true
		}
	}
	return ids, nil
}

// annotator writes annotations of the Node name, nil values are removed. A node may write those of its own Node only.
func annotator(client kubernetes.Interface, name string) func(context.Context, map[string]*string) error {
	return func(ctx context.Context, changes map[string]*string) error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": changes}})
		if err != nil {
			return err
		}
		_, err = client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

// probeServer connects to the API server from a given address, as a pod would: all pods need that way, and it is the one that a node may know.
func probeServer(client kubernetes.Interface) func(context.Context, netip.Addr) error {
	return func(ctx context.Context, from netip.Addr) error {
		at := client.CoreV1().RESTClient().Get().URL()
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

// probePods connects from a given address to another node by the address that its pods' gateway has, the first of their range or, in HNS networks,
// the second. Kubelets listen there, on the port served mostly; a refusal has found its way as well.
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
