package stats

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

var claimLabels = []string{"namespace", "persistentvolumeclaim"}

// What upstream's kubelet reports about itself on /metrics, as far as Prometheus' kubernetes-mixin asks for it.
var (
	nodeName          = prometheus.NewDesc("kubelet_node_name", "The node's name", []string{"node"}, nil)
	runningPods       = prometheus.NewDesc("kubelet_running_pods", "Pods with a running container", nil, nil)
	runningContainers = prometheus.NewDesc("kubelet_running_containers", "Containers by their state", []string{"container_state"}, nil)

	buildInfo = prometheus.NewDesc("kubernetes_build_info", "1, with the version of Kubernetes that this kubelet implements", []string{"git_version"}, nil)

	claimCapacity  = prometheus.NewDesc("kubelet_volume_stats_capacity_bytes", "Size of the volume", claimLabels, nil)
	claimAvailable = prometheus.NewDesc("kubelet_volume_stats_available_bytes", "Free bytes of the volume", claimLabels, nil)
	claimUsed      = prometheus.NewDesc("kubelet_volume_stats_used_bytes", "Used bytes of the volume", claimLabels, nil)
	claimInodes    = prometheus.NewDesc("kubelet_volume_stats_inodes", "Inodes of the volume", claimLabels, nil)
	claimFree      = prometheus.NewDesc("kubelet_volume_stats_inodes_free", "Free inodes of the volume", claimLabels, nil)
	volumeCount    = prometheus.NewDesc("volume_manager_total_volumes", "Volumes of pods, by kind, desired and actual", []string{"plugin_name", "state"}, nil)

	claimAbnormal = prometheus.NewDesc("kubelet_volume_stats_health_status_abnormal", "Whether the CSI driver reports the volume as abnormal (1) or healthy (0)", claimLabels, nil)
	claimInUse    = prometheus.NewDesc("kubelet_volume_stats_inodes_used", "Used inodes of the volume", claimLabels, nil)
)

// The certificates that are reported.
const (
	ClientCertificate  = "client"
	ServingCertificate = "server"
)

// certificateDescs are, by certificate, how long it is good for, and how often its renewal failed. The names are upstream's; where a certificate is
// not renewed there is neither.
var certificateDescs = map[string]struct{ left, failed *prometheus.Desc }{
	ClientCertificate: {
		prometheus.NewDesc("kubelet_certificate_manager_client_ttl_seconds", "Seconds until the client certificate expires; negative: it has expired", nil, nil),
		prometheus.NewDesc("kubelet_certificate_manager_client_expiration_renew_errors", "Failed renewals of the client certificate", nil, nil),
	},
	ServingCertificate: {
		prometheus.NewDesc("kubelet_certificate_manager_server_ttl_seconds", "Seconds until the serving certificate expires; negative: it has expired", nil, nil),
		prometheus.NewDesc("kubelet_server_expiration_renew_errors", "Failed renewals of the serving certificate", nil, nil),
	},
}

// Certificate is one that is renewed.
type Certificate interface {
	// Current is nil while there is none yet.
	Current() *tls.Certificate
	// Failures is how often renewing it failed.
	Failures() uint64
}

// Agent is a prometheus.Collector of the agent's view of its pods.
type Agent struct {
	Node    string
	Pods    Pods
	Disks   PodDisks
	Volumes Volumes
	Version string // of Kubernetes
	Health  bool   // of volumes is reported (feature gate CSIVolumeHealth)
	// Certificates are those that are renewed, by ClientCertificate and ServingCertificate.
	Certificates map[string]Certificate
}

// Describe promises nothing: of which claims there are figures is known only when they are measured.
func (Agent) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (a Agent) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(nodeName, 1, a.Node)
	gauge(buildInfo, 1, a.Version)
	for name, certificate := range a.Certificates {
		desc := certificateDescs[name]
		if current := certificate.Current(); current != nil {
			gauge(desc.left, time.Until(current.Leaf.NotAfter).Seconds())
		}
		out <- prometheus.MustNewConstMetric(desc.failed, prometheus.CounterValue, float64(certificate.Failures()))
	}
	pods, states, measured := 0, map[pod.State]int{pod.Running: 0, pod.Exited: 0, pod.Created: 0}, map[string]bool{}
	views := a.Pods.Snapshot()
	var claiming []pod.View
	a.countVolumes(views, gauge)
	for _, view := range views {
		runs := false
		for _, c := range view.Observed.Containers {
			states[c.State]++
			runs = runs || c.State == pod.Running
		}
		if runs {
			pods++
		}
		if runs && hasClaim(view.Pod) {
			claiming = append(claiming, view)
		}
	}
	if len(claiming) > 0 {
		figures := a.Disks.Pods(context.Background(), disk.Terms{Age: diskAge / 2, Patience: patience}, nil, claiming)
		for _, view := range claiming {
			a.claims(view.Pod, figures[view.Pod.UID].Volumes, measured, gauge)
		}
	}
	gauge(runningPods, float64(pods))
	for state, n := range states {
		gauge(runningContainers, float64(n), string(state))
	}
}

// countVolumes tells how many volumes pods should have, and how many they have: no container is made before all volumes of its pod are ready.
func (a Agent) countVolumes(views []pod.View, gauge func(*prometheus.Desc, float64, ...string)) {
	desired, actual := map[string]int{}, map[string]int{}
	for _, view := range views {
		if view.Phase == pod.Terminated {
			continue
		}
		for i := range view.Pod.Spec.Volumes {
			plugin := a.Volumes.Plugin(view.Pod, &view.Pod.Spec.Volumes[i])
			if plugin == "" {
				continue
			}
			desired[plugin]++
			if len(view.Observed.Containers) > 0 {
				actual[plugin]++
			}
		}
	}
	for plugin, n := range desired {
		gauge(volumeCount, float64(n), plugin, "desired_state_of_world")
		gauge(volumeCount, float64(actual[plugin]), plugin, "actual_state_of_world")
	}
}

func hasClaim(p *v1.Pod) bool {
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].PersistentVolumeClaim != nil || p.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

// claims reports the volumes behind p's claims, each once.
func (a Agent) claims(p *v1.Pod, all []disk.Volume, measured map[string]bool, gauge func(*prometheus.Desc, float64, ...string)) {
	for _, u := range all {
		if key := p.Namespace + "/" + u.Claim; u.Claim == "" || u.At.IsZero() || measured[key] {
			continue
		} else {
			measured[key] = true
		}
		tell := func(desc *prometheus.Desc, n uint64) { gauge(desc, float64(n), p.Namespace, u.Claim) }
		tell(claimCapacity, u.Capacity)
		tell(claimAvailable, u.Available)
		tell(claimUsed, u.Used)
		if a.Health && u.Health != nil {
			tell(claimAbnormal, one(u.Health.Abnormal))
		}
		if u.Inodes > 0 {
			tell(claimInodes, u.Inodes)
			tell(claimFree, u.InodesFree)
			tell(claimInUse, u.InodesUsed)
		}
	}
}

func one(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}
