package stats

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

// conditions are what drivers say of the volumes of pod u, and of no other.
type conditions struct {
	volumes []disk.Volume
	asked   int
}

func (c *conditions) Pods(_ context.Context, _ disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
	c.asked += len(whole) + len(volumes)
	return map[types.UID]disk.Pod{"u": {Volumes: c.volumes}}
}

type podEvents chan string

func (e podEvents) PodEvent(namespace, name, uid, kind, reason, message string) {
	e <- namespace + "/" + name + " " + uid + " " + kind + " " + reason + " " + message
}

func csiPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
		{Name: "in", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d"}}},
	}}}
}

// TestVolumeHealth: each change of what a driver says of a volume is an Event; pods without such volumes are not measured.
func TestVolumeHealth(t *testing.T) {
	abnormal := func(message string) *disk.Health { return &disk.Health{Abnormal: true, Message: message} }
	says := &conditions{}
	events, clock := make(podEvents, 10), testingclock.NewFakeClock(time.Unix(1e9, 0))
	other := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "nfs", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
	kinds := plugins{"data": "kubernetes.io/csi", "in": "kubernetes.io/csi", "nfs": "kubernetes.io/nfs"}
	h := &VolumeHealth{Pods: viewsOf{{Pod: csiPod()}, {Pod: other}, {Pod: &v1.Pod{}}, {Pod: csiPod(), Phase: pod.Terminated}}, Volumes: kinds, Disks: says, Events: events, Clock: clock}
	for i, step := range []struct {
		data, in *disk.Health
		want     string
	}{
		{nil, &disk.Health{}, ""},
		{abnormal("slow"), &disk.Health{}, "ns/web u Warning VolumeConditionAbnormal Volume data: slow"},
		{abnormal("slow"), abnormal("lost"), "ns/web u Warning VolumeConditionAbnormal Volume in: lost"},
		{abnormal("broken"), nil, "ns/web u Warning VolumeConditionAbnormal Volume data: broken"},
		{&disk.Health{}, abnormal("lost"), "ns/web u Normal VolumeConditionNormal Volume data: The Volume returns to the healthy state"},
	} {
		says.volumes = []disk.Volume{{Volume: "data", Health: step.data}, {Volume: "in", Health: step.in}}
		h.look(t.Context())
		var got []string
		for len(events) > 0 {
			got = append(got, <-events)
		}
		if text := strings.Join(got, "\n"); text != step.want {
			t.Errorf("step %d: %s, want %s", i, text, step.want)
		}
	}
	if says.asked != 5 {
		t.Errorf("%d pods were measured in 5 looks, want the one with volumes", says.asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	says.volumes[0].Health = abnormal("again")
	go func() { ended <- h.Run(ctx) }()
	<-events
	for !clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHealthOfInTreeKinds: an inline volume of an in-tree kind that is a CSI driver's now is looked at.
func TestHealthOfInTreeKinds(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "disk", VolumeSource: v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}}}}}
	says := &conditions{volumes: []disk.Volume{{Volume: "disk", Health: &disk.Health{Abnormal: true, Message: "lost"}}}}
	events := make(podEvents, 10)
	h := &VolumeHealth{Pods: viewsOf{{Pod: p}}, Volumes: plugins{"disk": "kubernetes.io/csi"}, Disks: says, Events: events, Clock: testingclock.NewFakeClock(time.Unix(1e9, 0))}
	h.look(t.Context())
	select {
	case got := <-events:
		if want := "ns/web u Warning VolumeConditionAbnormal Volume disk: lost"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	default:
		t.Error("no Event")
	}
}

// TestHealthIsGated: the metric and the field of the summary are there with the feature gate alone.
func TestHealthIsGated(t *testing.T) {
	volumes := []disk.Volume{{Volume: "data", Claim: "c", At: time.Unix(1, 0), Health: &disk.Health{Abnormal: true}}, {Volume: "other", Claim: "fine", At: time.Unix(1, 0), Health: &disk.Health{}}}
	for _, on := range []bool{false, true} {
		agent := Agent{Pods: viewsOf{{Pod: csiPod(), Observed: pod.Observed{Containers: []pod.Container{{State: pod.Running}}}}}, Volumes: plugins{}, Disks: &conditions{volumes: volumes}, Health: on}
		registry := prometheus.NewRegistry()
		registry.MustRegister(agent)
		w := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, line := range []string{`kubelet_volume_stats_health_status_abnormal{namespace="ns",persistentvolumeclaim="c"} 1`, `kubelet_volume_stats_health_status_abnormal{namespace="ns",persistentvolumeclaim="fine"} 0`} {
			if slices.Contains(strings.Split(w.Body.String(), "\n"), line) != on {
				t.Errorf("gate %v: %s\n%s", on, line, w.Body)
			}
		}
		c := &Collector{cfg: Config{VolumeHealth: on}}
		got := c.summarize(usage{pods: []podUsage{{pod: csiPod()}}}, &disks{pods: map[types.UID]disk.Pod{"u": {Volumes: volumes}}}).Pods[0].VolumeStats
		if len(got) != 2 || got[0].PVCRef.Name != "c" || (got[0].VolumeHealthStats != nil) != on || on && !got[0].VolumeHealthStats.Abnormal {
			t.Errorf("gate %v: %+v", on, got)
		}
	}
}
