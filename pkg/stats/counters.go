package stats

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/pkg/podspec"
)

// Counters counts the agent's work under upstream's names, as a prometheus.Collector for /metrics. Safe for concurrent use.
type Counters struct {
	evictions    *prometheus.CounterVec
	evictionAge  *prometheus.HistogramVec
	preemptions  *prometheus.CounterVec
	images       *prometheus.CounterVec
	operations   *prometheus.CounterVec
	failures     *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	relist       prometheus.Observer
	relistPause  prometheus.Observer
	requests     *prometheus.CounterVec
	requestTime  *prometheus.HistogramVec
	podSync      *prometheus.HistogramVec
	podStart     prometheus.Observer
	ended        *prometheus.CounterVec
	cgroups      *prometheus.HistogramVec
	storage      storageTimes
	all          []prometheus.Collector
	mu           sync.Mutex
	exitCodes    map[int]bool
	relistedLast time.Time // zero: not yet
}

// storageTimes are for volumes: preparation by any kind, and calls to CSI drivers.
type storageTimes struct{ ready, calls *prometheus.HistogramVec }

// NewCounters returns a Counters with zero counts. All times are durations in seconds.
func NewCounters() *Counters {
	c := &Counters{exitCodes: map[int]bool{}}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		c.all = append(c.all, v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		c.all = append(c.all, v)
		return v
	}
	times := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return histogram(name, help, timeBuckets, labels...)
	}
	c.evictions = counter("kubelet_evictions", "Evicted pods, by eviction signal", "eviction_signal")
	c.evictionAge = times("kubelet_eviction_stats_age_seconds", "Age of the figures that led to an eviction", "eviction_signal")
	c.preemptions = counter("kubelet_preemptions", "Pods preempted for a critical pod, by the resource that it lacked", "preemption_signal")
	c.images = counter("kubelet_image_garbage_collected_total", "Removed images, by reason: space or age", "reason")
	c.operations = counter("kubelet_runtime_operations_total", "Calls to Docker", "operation_type")
	c.failures = counter("kubelet_runtime_operations_errors_total", "Failed calls to Docker", "operation_type")
	c.duration = times("kubelet_runtime_operations_duration_seconds", "Duration of calls to Docker", "operation_type")
	c.relist = times("kubelet_pleg_relist_duration_seconds", "Duration of a relist of containers").WithLabelValues()
	c.relistPause = times("kubelet_pleg_relist_interval_seconds", "Interval between relists of containers").WithLabelValues()
	c.requests = counter("rest_client_requests_total", "Requests to the API server", "code", "method", "host")
	c.requestTime = times("rest_client_request_duration_seconds", "Time from a request to the API server to the start of its response", "verb", "host")
	c.podSync = times("kubelet_pod_worker_duration_seconds", "Duration of work on a pod, from its first step to its last", "operation_type")
	c.podStart = histogram("kubelet_pod_start_duration_seconds", "Time from when a pod was first seen until it ran", startBuckets).WithLabelValues()
	c.ended = counter("kubelet_terminated_containers_total", "Containers that have ended since this kubelet started", "container_type", "exit_code", "reason")
	c.cgroups = times("kubelet_cgroup_manager_duration_seconds", "Duration of creating, changing or removing the cgroup of a pod", "operation_type")
	c.storage.ready = histogram("storage_operation_duration_seconds", "Duration of setting up or updating a volume of a pod",
		storageBuckets, "migrated", "operation_name", "status", "volume_plugin")
	c.storage.calls = histogram("csi_operations_seconds", "Duration of calls to CSI drivers",
		storageBuckets, "driver_name", "method_name", "grpc_status_code", "migrated")
	return c
}

// timeBuckets range from an inspection's time to a pull's. Alerts and dashboards rely on startBuckets and storageBuckets, which are upstream's.
var (
	timeBuckets    = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	startBuckets   = []float64{.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	storageBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
)

// Describe implements prometheus.Collector.
func (c *Counters) Describe(out chan<- *prometheus.Desc) {
	for _, one := range c.all {
		one.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *Counters) Collect(out chan<- prometheus.Metric) {
	for _, one := range c.all {
		one.Collect(out)
	}
}

// Evicted counts an evicted pod, by signal, and the age of the figures that caused the eviction.
func (c *Counters) Evicted(signal string, age time.Duration) {
	c.evictions.WithLabelValues(signal).Inc()
	c.evictionAge.WithLabelValues(signal).Observe(age.Seconds())
}

// Preempted counts pods that were removed to free a resource.
func (c *Counters) Preempted(resource string, pods int) {
	c.preemptions.WithLabelValues(resource).Add(float64(pods))
}

// ImageRemoved counts a removed image; reason is space or age.
func (c *Counters) ImageRemoved(reason string) { c.images.WithLabelValues(reason).Inc() }

// Operation counts a call to the engine.
func (c *Counters) Operation(kind string, took time.Duration, err error) {
	c.operations.WithLabelValues(kind).Inc()
	c.duration.WithLabelValues(kind).Observe(took.Seconds())
	if err != nil {
		c.failures.WithLabelValues(kind).Inc()
	}
}

// PodSynced implements pod.Timing.
func (c *Counters) PodSynced(kind string, took time.Duration) {
	c.podSync.WithLabelValues(kind).Observe(took.Seconds())
}

// PodStarted implements pod.Timing.
func (c *Counters) PodStarted(took time.Duration) { c.podStart.Observe(took.Seconds()) }

// maxExitCodes is how many exit codes have a separate label. Linux has 256 of them, Windows any number.
const maxExitCodes = 512

// ContainerEnded implements pod.Timing.
func (c *Counters) ContainerEnded(kind podspec.Kind, exitCode int, reason string) {
	c.mu.Lock()
	code := "other"
	if c.exitCodes[exitCode] || len(c.exitCodes) < maxExitCodes {
		c.exitCodes[exitCode], code = true, strconv.Itoa(exitCode)
	}
	c.mu.Unlock()
	c.ended.WithLabelValues(containerTypes[kind], code, reason).Inc()
}

// containerTypes are upstream's terms.
var containerTypes = map[podspec.Kind]string{podspec.App: "container", podspec.Init: "init_container", podspec.Ephemeral: "ephemeral_container"}

// Cgroup measures an operation on a pod's cgroup: create, update or destroy.
func (c *Counters) Cgroup(operation string, took time.Duration) {
	c.cgroups.WithLabelValues(operation).Observe(took.Seconds())
}

// VolumePrepared counts a volume of upstream's plugin of that name that was prepared, or could not be.
func (c *Counters) VolumePrepared(plugin string, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	c.storage.ready.WithLabelValues("false", "volume_mount", status, plugin).Observe(took.Seconds())
}

// CSICalled counts a call to a CSI driver; method is such as /csi.v1.Node/NodeStageVolume. migrated says that the volume was translated from an
// in-tree kind.
func (c *Counters) CSICalled(driver, method string, took time.Duration, err error, migrated bool) {
	code := "unknown-non-grpc"
	if s, ok := status.FromError(err); ok {
		code = s.Code().String()
	}
	c.storage.calls.WithLabelValues(driver, method, code, strconv.FormatBool(migrated)).Observe(took.Seconds())
}

// Relisted measures a comparison of all pods with the engine.
func (c *Counters) Relisted(begin, end time.Time) {
	c.relist.Observe(end.Sub(begin).Seconds())
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.relistedLast.IsZero() {
		c.relistPause.Observe(begin.Sub(c.relistedLast).Seconds())
	}
	c.relistedLast = begin
}

// Transport counts the requests that pass through next.
func (c *Counters) Transport(next http.RoundTripper) http.RoundTripper { return &counting{next, c} }

// counting has no CloseIdleConnections: client-go finds that of next by WrappedRoundTripper.
type counting struct {
	next     http.RoundTripper
	counters *Counters
}

// RoundTrip implements http.RoundTripper.
func (t *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	response, err := t.next.RoundTrip(r)
	code := "<error>" // as in client-go
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	t.counters.requests.WithLabelValues(code, r.Method, r.URL.Host).Inc()
	t.counters.requestTime.WithLabelValues(r.Method, r.URL.Host).Observe(time.Since(begin).Seconds())
	return response, err
}

// WrappedRoundTripper implements net.RoundTripperWrapper of k8s.io/apimachinery.
func (t *counting) WrappedRoundTripper() http.RoundTripper { return t.next }
