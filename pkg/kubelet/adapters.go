package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/docker/containers"
	"github.com/winkube/winkube/pkg/docker/exec"
	"github.com/winkube/winkube/pkg/docker/images"
	"github.com/winkube/winkube/pkg/docker/logs"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/probe"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/stats"
)

// prober is probe.Prober in the words of package pod, which stands beside it and not above it.
type prober struct {
	*probe.Prober
	count *stats.Probes
}

func (p prober) Probe(ctx context.Context, handler v1.ProbeHandler, target pod.ProbeTarget) (pod.ProbeResult, error) {
	begin := time.Now()
	result, err := p.Prober.Probe(ctx, handler, probeTarget(target))
	ok := err == nil && result.Outcome != probe.Failure
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) { // else it was ended, and nothing came of it
		p.count.Count(target.Pod, target.Container, target.Kind, ok, err, time.Since(begin))
	}
	return pod.ProbeResult{OK: ok, Warning: result.Outcome == probe.Warning, Detail: result.Detail}, err
}

func (p prober) Hook(ctx context.Context, action *v1.HTTPGetAction, target pod.ProbeTarget) (bool, error) {
	return p.Prober.Hook(ctx, action, probeTarget(target))
}

func probeTarget(target pod.ProbeTarget) probe.Target {
	env := make([]string, len(target.Env))
	for i, variable := range target.Env {
		env[i] = variable.Name + "=" + variable.Value
	}
	return probe.Target{ContainerID: target.ContainerID, PodIP: target.PodIP, Ports: target.Ports, Env: env}
}

// lookup is pod.Manager in the words of package server.
type lookup struct{ pods *pod.Manager }

func (l lookup) Pods() []*v1.Pod {
	views := l.pods.Snapshot()
	pods := make([]*v1.Pod, len(views))
	for i, view := range views {
		pods[i] = view.Pod
	}
	return pods
}

func (l lookup) Lookup(namespace, name string, uid types.UID, container string) (server.Ref, bool) {
	ref, err := l.pods.Lookup(namespace, name, uid, container)
	if err != nil {
		// The container may be one that has not started: the pod itself tells the server what to answer.
		if ref, err = l.pods.Lookup(namespace, name, uid, ""); err != nil {
			return server.Ref{}, false
		}
	}
	found := server.Ref{Pod: ref.Pod, NetworkID: ref.NetworkID}
	if ref.Running {
		found.ContainerID = ref.ID
	}
	return found, true
}

// counted is a runtime whose calls are counted.
type counted struct {
	pod.Runtime
	counters *stats.Counters
}

func (c counted) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	begin := time.Now()
	err := c.Runtime.Apply(ctx, p, step)
	c.counters.Operation(strings.ReplaceAll(string(step.Action), "-", "_"), time.Since(begin), err)
	return err
}

func (c counted) ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error) {
	begin := time.Now()
	all, err := c.Runtime.ObserveAll(ctx)
	end := time.Now()
	c.counters.Operation("list", end.Sub(begin), err)
	if err == nil {
		c.counters.Relisted(begin, end)
	}
	return all, err
}

// connecting is the engine with word to the pod network: of pods that join it, and of an engine that was gone.
type connecting struct {
	pod.Runtime
	network interface {
		Joined()
		Kick()
	}
}

func (c connecting) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	err := c.Runtime.Apply(ctx, p, step)
	if step.Action == pod.CreateSandbox {
		c.network.Joined()
	}
	return err
}

func (c connecting) Changes(ctx context.Context) <-chan types.UID {
	in, out := c.Runtime.Changes(ctx), make(chan types.UID)
	go func() {
		defer close(out)
		for uid := range in {
			if uid == "" {
				c.network.Kick()
			}
			select {
			case out <- uid:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// streams is the engine in the words of package server.
type streams struct {
	*logs.Store
	*exec.Executor
}

// podNetworks is the engine in the words of package network.
type podNetworks struct {
	*networks.Store
	*containers.Runtime
}

// imageVolumes is the engine's images and the resolver in the words of package volume. The resolver needs the volumes, so that it comes later.
type imageVolumes struct {
	*images.Store
	resolver *pod.Resolver
}

func (i *imageVolumes) Ensure(ctx context.Context, p *v1.Pod, v *v1.Volume) (pod.Image, error) {
	return i.resolver.EnsureImage(ctx, p, v)
}

// makeNetwork makes the part that keeps this node's pod network.
func (k *Kubelet) makeNetwork(cfg Config, client kubernetes.Interface) (err error) {
	reports, err := report.OfHost(cfg.Platform.OS == "windows")
	if err != nil {
		klog.ErrorS(err, "Cannot find the file in which the proxy reports broken routes; the Node will not show them")
	}
	plugins, err := cniPlugins(cfg)
	if err != nil {
		return err
	}
	k.network, err = network.New(cfg.Network, network.Parts{
		Engine: networkEngine{podNetworks{k.engine.Networks, k.engine.Containers}, k}, Host: hostnet.New(), Windows: hostnet.Windows(), Clock: clock.RealClock{}, Reports: reports, Plugins: plugins,
		Node: networkNode{k, annotator(client, cfg.NodeName), k.networkChanged()}, Pods: networkPods{k}, Prober: networkProber{probeServer(client), probePods(cfg.Server.Address)},
	})
	return err
}

// cniPlugins are those that make the pods' network; nil in other modes.
func cniPlugins(cfg Config) (network.Plugins, error) {
	if cfg.Network.Mode != network.CNI {
		return nil, nil
	}
	return cni.New(cni.Config{ConfDir: cfg.Network.ConfDir, BinDirs: cfg.CNIBin, StateDir: filepath.Join(cfg.RootDir, "cni")})
}

// networkEngine is the engine in the words of package network.
type networkEngine struct {
	network.EngineNetworks
	k *Kubelet
}

func (e networkEngine) Version(ctx context.Context) (string, error) { return e.k.engineVersion(ctx) }

func (e networkEngine) Containers(ctx context.Context) (map[string]bool, error) {
	return e.k.containers(ctx)
}

// networkNode is the Node in the words of package network.
type networkNode struct {
	k        *Kubelet
	annotate func(context.Context, map[string]*string) error
	changed  func(ready error)
}

func (n networkNode) Annotate(ctx context.Context, changes map[string]*string) error {
	return n.annotate(ctx, changes)
}

func (n networkNode) Event(kind, reason, message string) { n.k.networkEvent(kind, reason, message) }

func (n networkNode) NetworkChanged(ready error) { n.changed(ready) }

// networkPods are the pods in the words of package network. DNS is asked for pods that are attached, long after the resolver was made.
type networkPods struct{ k *Kubelet }

func (p networkPods) DNS(of *v1.Pod) (pod.DNS, error) { return p.k.dns(of) }

func (p networkPods) Event(namespace, name, uid, kind, reason, message string) {
	p.k.podEvent(namespace, name, uid, kind, reason, message)
}

// networkProber sends the packets of package network.
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

// podEvent tells something of a pod.
func (k *Kubelet) podEvent(namespace, name, uid, kind, reason, message string) {
	k.recorder.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)}, kind, reason, message)
}

// containers are the ids of all that the engine has of pods.
func (k *Kubelet) containers(ctx context.Context) (map[string]bool, error) {
	all, err := k.engine.Containers.ObserveAll(ctx)
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

// networkEvent tells of the pod network, and has the Node say so too.
func (k *Kubelet) networkEvent(kind, reason, message string) {
	k.nodeEvent(kind, reason, message)
	if k.node != nil {
		k.node.Kick()
	}
}

// networkUnavailable is network.Manager in the words of package node.
func (k *Kubelet) networkUnavailable() *v1.NodeCondition {
	c := k.network.Unavailable()
	if c == nil {
		return nil
	}
	status := v1.ConditionTrue
	if c.Ready {
		status = v1.ConditionFalse
	}
	return &v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: status, Reason: c.Reason, Message: c.Message}
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

func debugHandler(pods *pod.Manager) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		pods.DebugText(w)
	})
}

// metricsHandler serves what the agent knows of its pods, and what its process costs. The registry is ours, so that no library adds to it behind our back.
func metricsHandler(own ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(own...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
