package stats

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/winkube/winkube/pkg/podspec"
)

// told is the output of collectors, without help texts and buckets.
func told(t *testing.T, all ...prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(all...)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return strings.Join(regexp.MustCompile(`(?m)^[a-z_]+_(?:total|count|sum|evictions|preemptions|seconds|errors|info)(?:{.*})? .*$`).FindAllString(w.Body.String(), -1), "\n")
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

func TestCounters(t *testing.T) {
	c := NewCounters()
	c.Evicted("memory.available", 2*time.Second)
	c.Evicted("memory.available", 4*time.Second)
	c.Preempted("cpu", 2)
	c.ImageRemoved("age")
	c.Operation("start_container", time.Second, nil)
	c.Operation("start_container", time.Second, errors.New("no"))
	start := time.Unix(1000, 0)
	c.Relisted(start, start.Add(time.Second))
	c.Relisted(start.Add(time.Minute), start.Add(time.Minute+2*time.Second))
	c.PodSynced("create", 3*time.Second)
	c.PodStarted(4 * time.Second)
	c.Cgroup("destroy", 2*time.Second)
	c.ContainerEnded(podspec.App, 139, "Error")
	c.ContainerEnded(podspec.App, 139, "Error")
	c.ContainerEnded(podspec.Init, 0, "Completed")
	c.ContainerEnded(podspec.Ephemeral, 137, "OOMKilled")
	for code := range 2 * maxExitCodes {
		c.ContainerEnded(podspec.App, -1-code, "Error")
	}
	c.VolumePrepared("kubernetes.io/secret", time.Second, errors.New("no such Secret"))
	c.VolumePrepared("kubernetes.io/secret", 5*time.Second, nil)
	next := c.Transport(refusing{})
	if response, err := next.RoundTrip(httptest.NewRequest("GET", "https://api:6443/x?token=secret", nil)); err == nil {
		t.Errorf("got %v", response)
	}
	got := told(t, c)
	for _, want := range []string{
		`kubelet_evictions{eviction_signal="memory.available"} 2`, `kubelet_eviction_stats_age_seconds_sum{eviction_signal="memory.available"} 6`,
		`kubelet_preemptions{preemption_signal="cpu"} 2`, `kubelet_image_garbage_collected_total{reason="age"} 1`,
		`kubelet_runtime_operations_total{operation_type="start_container"} 2`, `kubelet_runtime_operations_errors_total{operation_type="start_container"} 1`,
		`kubelet_runtime_operations_duration_seconds_count{operation_type="start_container"} 2`,
		`kubelet_pod_worker_duration_seconds_sum{operation_type="create"} 3`, "kubelet_pod_start_duration_seconds_sum 4",
		`kubelet_cgroup_manager_duration_seconds_sum{operation_type="destroy"} 2`,
		`kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 2`,
		`kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1`,
		`kubelet_terminated_containers_total{container_type="ephemeral_container",exit_code="137",reason="OOMKilled"} 1`,
		fmt.Sprintf(`kubelet_terminated_containers_total{container_type="container",exit_code="other",reason="Error"} %d`, maxExitCodes+3),
		`storage_operation_duration_seconds_sum{migrated="false",operation_name="volume_mount",status="fail-unknown",volume_plugin="kubernetes.io/secret"} 1`,
		`storage_operation_duration_seconds_sum{migrated="false",operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/secret"} 5`,
		"kubelet_pleg_relist_duration_seconds_sum 3", "kubelet_pleg_relist_interval_seconds_sum 60", "kubelet_pleg_relist_interval_seconds_count 1",
		`rest_client_requests_total{code="<error>",host="api:6443",method="GET"} 1`, `rest_client_request_duration_seconds_count{host="api:6443",verb="GET"} 1`,
	} {
		if !strings.Contains("\n"+got+"\n", "\n"+want+"\n") {
			t.Errorf("not told: %s", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// fakeCertificate expires at a time; the zero time: there is none yet.
type fakeCertificate struct {
	ends     time.Time
	failures uint64
}

func (f fakeCertificate) Failures() uint64 { return f.failures }

func (f fakeCertificate) Current() *tls.Certificate {
	if f.ends.IsZero() {
		return nil
	}
	return &tls.Certificate{Leaf: &x509.Certificate{NotAfter: f.ends}}
}

func TestAgentCertificates(t *testing.T) {
	agent := Agent{Node: "n", Version: "v1.36.3", Pods: viewsOf(nil), Certificates: map[string]Certificate{
		ClientCertificate: fakeCertificate{ends: time.Now().Add(-time.Hour)}, ServingCertificate: fakeCertificate{failures: 3}}}
	got := told(t, agent)
	want := regexp.MustCompile(`^kubelet_certificate_manager_client_expiration_renew_errors 0
kubelet_certificate_manager_client_ttl_seconds -360\d(?:\.\d+)?
kubelet_server_expiration_renew_errors 3
kubernetes_build_info{git_version="v1.36.3"} 1$`)
	if !want.MatchString(got) {
		t.Errorf("got\n%s", got)
	}
	agent.Certificates = nil
	if got := told(t, agent); got != `kubernetes_build_info{git_version="v1.36.3"} 1` {
		t.Errorf("without certificates: got\n%s", got)
	}
}
