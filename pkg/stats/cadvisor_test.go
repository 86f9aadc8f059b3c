package stats

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TestCadvisor compares the whole answer with a golden file, which is also the list of metric names.
func TestCadvisor(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the kernel's files have colons in their names and paths")
	}
	for _, version := range []string{"v1", "v2"} {
		root := machine(t, version == "v2")
		more := map[string]string{
			"cg/cpu/pods/podu1/a/cpu.stat":              "nr_periods 50\nnr_throttled 5\nthrottled_time 2000000000\n",
			"cg/cpu/pods/podu1/a/cpu.shares":            "512\n",
			"cg/cpu/pods/podu1/a/cpu.cfs_quota_us":      "20000\n",
			"cg/cpu/pods/podu1/a/cpu.cfs_period_us":     "100000\n",
			"cg/memory/pods/podu1/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		}
		if version == "v2" {
			more = map[string]string{
				"cg/pods/podu1/a/cpu.max":       "20000 100000\n",
				"cg/pods/podu1/a/memory.events": "oom 1\noom_kill 2\n",
				"cg/pods/podu1/memory.events":   "oom 1\noom_kill 5\n",
				"proc/diskstats":                "   8       0 sda 1 2 3\n",
				"cg/pods/podu1/a/io.stat":       "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=4 wbytes=0 rios=1 wios=0\n",
			}
		}
		for name, text := range more {
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r := newRig(t, "linux", root)
		w := httptest.NewRecorder()
		r.CadvisorHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics/cadvisor", nil))
		got := w.Body.String()
		file := "testdata/cadvisor-" + version + ".txt"
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", version, got, want)
		}
	}
}

// viewsOf are pods that do not change.
type viewsOf []pod.View

func (v viewsOf) Snapshot() []pod.View { return v }

// plugins are plugin names by volume name.
type plugins map[string]string

func (p plugins) Plugin(_ *v1.Pod, v *v1.Volume) string { return p[v.Name] }

// claimDisks has volumes of two pods.
type claimDisks struct{ *testing.T }

func (d claimDisks) Pods(_ context.Context, _ disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
	if len(whole) != 0 || len(volumes) != 2 {
		d.Errorf("measured %d pods as a whole and volumes of %d", len(whole), len(volumes))
	}
	return map[types.UID]disk.Pod{"": {Volumes: []disk.Volume{{Volume: "tmp"}, {Volume: "h", Claim: "hangs", Late: true},
		{Volume: "v", Claim: "data", At: time.Unix(1, 0), Disk: host.Disk{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}}}}}
}

func TestProbes(t *testing.T) {
	web := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"}}
	next := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u2"}}
	views := []pod.View{{Pod: web}}
	p := NewProbes()
	p.Count(web, "app", "Liveness", true, nil, 20*time.Millisecond)
	p.Count(web, "app", "Liveness", true, nil, time.Second)
	p.Count(web, "app", "Liveness", false, nil, time.Second)
	p.Count(web, "app", "Readiness", false, errors.New("no answer"), time.Second)
	lines := func() string {
		w := httptest.NewRecorder()
		p.Handler(viewsOf(views)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics/probes", nil))
		return strings.Join(regexp.MustCompile(`(?m)^prober_probe_(total|duration_seconds_count).*$`).FindAllString(w.Body.String(), -1), "\n")
	}
	of := `container="app",namespace="ns",pod="web",`
	counts := "prober_probe_duration_seconds_count{" + of + `probe_type="Liveness"} 3` + "\nprober_probe_duration_seconds_count{" + of + `probe_type="Readiness"} 1`
	want := counts + "\nprober_probe_total{" + of + `pod_uid="u1",probe_type="Liveness",result="failed"} 1` +
		"\nprober_probe_total{" + of + `pod_uid="u1",probe_type="Liveness",result="successful"} 2` +
		"\nprober_probe_total{" + of + `pod_uid="u1",probe_type="Readiness",result="unknown"} 1`
	if got := lines(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	views = []pod.View{{Pod: next}} // of the same name
	if got := lines(); got != counts {
		t.Errorf("a pod of the same name: got\n%s\nwant\n%s", got, counts)
	}
	p.Count(next, "app", "Startup", true, nil, time.Second)
	views = nil
	if got := lines(); got != "" {
		t.Errorf("no pods: got\n%s", got)
	}
}

func TestAgent(t *testing.T) {
	with := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}}
	with.Spec.Volumes = []v1.Volume{{Name: "unknown"}, {VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	runs := pod.Observed{Containers: []pod.Container{{State: pod.Running}, {State: pod.Exited}}}
	agent := Agent{
		Node:    "n1",
		Pods:    viewsOf{{Pod: with, Observed: runs}, {Pod: with, Observed: runs}, {Pod: &v1.Pod{}, Observed: pod.Observed{}}, {Pod: with}, {Pod: with, Phase: pod.Terminated}},
		Volumes: plugins{"": "kubernetes.io/local-volume"},
		Disks:   claimDisks{t},
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(agent, Crew(func() disk.State { return disk.State{Running: 3, Hung: 1, Unread: 9, Late: 5} }))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if strings.Contains(w.Body.String(), "hangs") {
		t.Errorf("an unmeasured claim is reported:\n%s", w.Body)
	}
	for _, want := range []string{"winkube_disk_measurements_running 3", "winkube_disk_measurements_hung 1", "winkube_disk_measurements_late_total 5", "winkube_disk_unreadable_files 9",
		`kubelet_node_name{node="n1"} 1`, "kubelet_running_pods 2", `kubelet_running_containers{container_state="exited"} 2`,
		`kubelet_running_containers{container_state="running"} 2`, `kubelet_volume_stats_available_bytes{namespace="ns",persistentvolumeclaim="data"} 60`,
		`kubelet_volume_stats_inodes_used{namespace="ns",persistentvolumeclaim="data"} 3`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/local-volume",state="desired_state_of_world"} 3`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/local-volume",state="actual_state_of_world"} 2`} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("not in the answer: %s\n%s", want, w.Body)
		}
	}
}

// BenchmarkScrape produces one answer of /metrics/cadvisor for 100 containers, with new measurements. It should stay below 100 ms.
func BenchmarkScrape(b *testing.B) {
	r := crowd(b)
	for b.Loop() {
		r.clock.SetTime(r.clock.Now().Add(2 * usageAge))
		r.CadvisorHandler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics/cadvisor", nil))
	}
}

// TestCompressed: clients with and without gzip get the same text.
func TestCompressed(t *testing.T) {
	r := newRig(t, "linux", machine(t, true))
	for path, handler := range map[string]http.Handler{"/metrics/cadvisor": r.CadvisorHandler(), "/metrics/resource": r.ResourceHandler(), "/stats/summary": r.SummaryHandler()} {
		var texts []string
		for accept, wants := range map[string]bool{"": false, "br;q=1, GZIP;q=0.5": true, "gzip": true, "gzip;q=0": false, "identity, gzip; q=0.0": false} {
			request := httptest.NewRequest("GET", path, nil)
			request.Header.Set("Accept-Encoding", accept)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, request)
			text := io.Reader(w.Body)
			if w.Header().Get("Content-Encoding") == "gzip" {
				var err error
				if text, err = gzip.NewReader(text); err != nil {
					t.Fatal(err)
				}
			}
			if wants != (w.Header().Get("Content-Encoding") == "gzip") {
				t.Errorf("%s, Accept-Encoding %q: Content-Encoding %q", path, accept, w.Header().Get("Content-Encoding"))
			}
			plain, err := io.ReadAll(text)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(plain))
		}
		for _, text := range texts[1:] {
			if text != texts[0] || text == "" {
				t.Errorf("%s: got\n%s\nwant\n%s", path, text, texts[0])
			}
		}
	}
}
