package stats

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// TestHundredContainers: the summary of 100 containers, each of which takes HCS 50 ms, is ready within a second.
func TestHundredContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "windows", machine(t, true))
		var views []pod.View
		for i := range 100 {
			id := fmt.Sprint(i)
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p" + id, UID: types.UID(id)}}
			views = append(views, pod.View{Pod: p, Observed: pod.Observed{Containers: []pod.Container{{ID: id, Name: "app", State: pod.Running}}}})
		}
		r.views = func() []pod.View { return views }
		r.container = func(id string) (hcs.Statistics, error) {
			<-time.After(50 * time.Millisecond) // the subject of this test
			return hcs.Statistics{Commit: uint64(len(id))}, nil
		}
		begin := time.Now()
		all := r.Summary(t.Context(), true)
		if took := time.Since(begin); took > time.Second || len(all.Pods) != 100 {
			t.Errorf("%d pods after %s", len(all.Pods), took)
		}
		for _, p := range all.Pods {
			if got := *p.Containers[0].Memory.UsageBytes; got != uint64(len(p.PodRef.UID)) {
				t.Errorf("pod %s has %d bytes", p.PodRef.UID, got)
			}
		}
	})
}

// TestNotInHCS: the engine measures a container that HCS does not know; one that neither knows is reported.
func TestNotInHCS(t *testing.T) {
	r := newRig(t, "windows", machine(t, true))
	r.container = func(string) (hcs.Statistics, error) { return hcs.Statistics{}, errors.New("no such system") }
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	if u := r.collect(t.Context()); u.failed != 0 || len(u.pods) != 1 || u.pods[0].containers[0].sample.WorkingSet != 700 || u.pods[0].net != nil {
		t.Errorf("got %+v", u)
	}
	r.usage = func(string) (docker.Usage, error) { return docker.Usage{}, errors.New("no") }
	r.adapters = func() ([]host.Adapter, error) { return nil, errors.New("no") }
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	if u := r.collect(t.Context()); u.failed != 2 || len(u.pods) != 0 {
		t.Errorf("got %+v", u)
	}
}

func TestAdapters(t *testing.T) {
	got := ordered([]host.Adapter{
		{Name: "Loopback", Up: true, Loopback: true, RxBytes: 9}, {Name: "vEthernet (nat)", Up: true, RxBytes: 5}, {Name: "Ethernet", Up: true, Default: true, RxBytes: 7},
		{Name: "Ethernet", Up: true, RxBytes: 7}, {Name: "Wi-Fi", RxBytes: 3}, {Name: "idle", Up: true},
	})
	var names []string
	for _, i := range got {
		names = append(names, i.Name)
	}
	if want := []string{"Ethernet", "vEthernet (nat)"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}
