package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/test/lab"
)

// TestMonitoring requests what Prometheus and kubectl request, through the API server: it checks names and labels of a
// container that has just started.
func TestMonitoring(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	pod := s.pod("seen", node, "serve", "8080")
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(8080)}}}
	s.create(pod)
	s.ready("seen")
	raw := func(ctx context.Context, path string) (string, error) {
		return cluster.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy"+path)
	}
	of := fmt.Sprintf(`namespace="%s",pod="seen"`, s.name)
	for path, wants := range map[string][]string{
		"/metrics/cadvisor": {
			`container_cpu_usage_seconds_total{container="main",cpu="total",id="/`, `image="` + lab.SampleImage + `"`, of,
			`container_memory_working_set_bytes{container="main"`, `container_network_receive_bytes_total{container=""`, `interface="eth0"`, `container_oom_events_total{container="main"`, `container_start_time_seconds{`, "machine_memory_bytes "},
		"/metrics/probes": {`prober_probe_total{container="main",` + of, `probe_type="Readiness",result="successful"`, "prober_probe_duration_seconds_bucket{"},
		"/metrics": {`kubelet_node_name{node="` + node.Name + `"} 1`, "kubelet_running_pods ", `kubelet_running_containers{container_state="running"}`,
			`kubelet_runtime_operations_total{operation_type="start_container"}`, "kubelet_pleg_relist_duration_seconds_bucket{", `rest_client_requests_total{code="200",host="`, `kubernetes_build_info{git_version="v1.`,
			`kubelet_pod_worker_duration_seconds_bucket{operation_type="create"`, "kubelet_pod_start_duration_seconds_bucket{", `kubelet_cgroup_manager_duration_seconds_count{operation_type="create"}`,
			`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/projected"}`,
			`volume_manager_total_volumes{plugin_name="kubernetes.io/projected",state="actual_state_of_world"}`},
		"/metrics/resource": {`container_cpu_usage_seconds_total{container="main",` + of},
		"/logs/":            {"<pre>"},
	} {
		s.eventually(time.Minute, path, func(ctx context.Context) error {
			text, err := raw(ctx, path)
			for _, want := range wants {
				if err == nil && !strings.Contains(text, want) {
					err = fmt.Errorf("there is no %s in %d bytes", want, len(text))
				}
			}
			return err
		})
	}
	if out, err := raw(t.Context(), "/logs/?query=kubelet"); err == nil || !strings.Contains(out+err.Error(), "enableSystemLogQuery") {
		t.Errorf("a query that is off: %q, %v", out, err)
	}
}
