package kubelet

import (
	"context"
	"errors"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker/exec"
	"github.com/winkube/winkube/pkg/docker/logs"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/probe"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/stats"
)

// prober adapts probe.Prober to pod.Prober. Package probe does not import pod.
type prober struct {
	*probe.Prober
	count *stats.Probes
}

func (p prober) Probe(ctx context.Context, handler v1.ProbeHandler, target pod.ProbeTarget) (pod.ProbeResult, error) {
	begin := time.Now()
	result, err := p.Prober.Probe(ctx, handler, probeTarget(target))
	ok := err == nil && result.Outcome != probe.Failure
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) { // otherwise it was cancelled and has no result
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

// lookup adapts worker.Manager to package server.
type lookup struct{ pods *worker.Manager }

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
		// The container may not have started: the pod itself tells the server what to answer.
		if ref, err = l.pods.Lookup(namespace, name, uid, ""); err != nil {
			return server.Ref{}, false
		}
	}
	found := server.Ref{Pod: ref.Pod, NetworkID: ref.NetworkID, PodIPs: ref.PodIPs}
	if ref.Running {
		found.ContainerID = ref.ID
	}
	return found, true
}

// newServer creates the HTTPS API; nil: it is off.
func newServer(cfg Config, clients kubeclient.Clients, b base, w workload, figures *stats.Collector) (*server.Server, error) {
	if cfg.Server.Off {
		return nil, nil
	}
	agent := stats.Agent{Node: cfg.NodeName, Pods: w.pods, Disks: b.disks, Volumes: b.volumes, Version: daemon.Kubernetes, Health: cfg.VolumeHealth, Certificates: certificates(cfg.Client, b.serving)}
	limited := server.NewLimited()
	return server.New(cfg.Server, server.Parts{
		GetCertificate: served(b.serving),
		Pods:           lookup{w.pods}, Engine: streams{b.engine.Logs, b.engine.Exec}, Observer: b.engine.Containers,
		TokenReviews: clients.Reviews.TokenReviews(), AccessReviews: clients.Reviews.SubjectAccessReviews(),
		Checks:  []server.Check{{Name: "syncloop", Check: func(context.Context) error { return w.pods.Ready() }}},
		Metrics: metricsHandler(agent, cfg.Counters, stats.Crew(b.disks.State), limited), Limited: limited,
		StatsSummary: figures.SummaryHandler(), MetricsResource: figures.ResourceHandler(), MetricsCadvisor: figures.CadvisorHandler(), MetricsProbes: b.probes.Handler(w.pods),
		NodeLogs: nodeLogs(cfg), DebugPods: debugHandler(w.pods), Configz: cfg.Configz,
	})
}

// streams adapts the engine to package server.
type streams struct {
	*logs.Store
	*exec.Executor
}

// nodeLogs serves the host's logs; nil: they are not served.
func nodeLogs(cfg Config) http.Handler {
	if cfg.Logs.Dir == "" {
		return nil
	}
	return server.NodeLogs{Dir: cfg.Logs.Dir, Query: cfg.Logs.Query, OS: cfg.Platform.OS, Runner: command.New()}
}

func debugHandler(pods *worker.Manager) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		pods.DebugText(w)
	})
}

// metricsHandler serves metrics of the agent and its process. It uses its own registry, so that libraries cannot add metrics.
func metricsHandler(own ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(own...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
