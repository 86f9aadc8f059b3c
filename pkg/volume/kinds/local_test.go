package kinds_test

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
	"github.com/winkube/winkube/pkg/volume/kinds"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// claims sends each patch of a claim's status.
type claims struct {
	*volumetest.API
	patches chan string
}

func (c claims) PatchClaimStatus(_ context.Context, namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error) {
	claim, err := c.Patched(namespace, name, patch)
	c.patches <- string(patch)
	return claim, err
}

// TestLocalVolumeGrows: when an administrator has made a local volume larger and its PersistentVolume says so, the claim of a running pod says so too.
func TestLocalVolumeGrows(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	api, events := claims{r.API, make(chan string, 9)}, &volumetest.Events{}
	claim, pv := r.Bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: t.TempDir()}})
	size := func(text string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: resource.MustParse(text)}
	}
	claim.Spec.Resources.Requests, claim.Status.Capacity, pv.Spec.Capacity = size("1Gi"), size("1Gi"), size("1Gi")
	m, err := volume.New(r.Host, volume.Parts{Claims: api, Clock: r.Clock, Prepared: func(string, time.Duration, error) {}, Kinds: kinds.All(r.Host, kinds.Parts{
		Objects: r.API, Clock: r.Clock, Run: r, Growth: grow.Parts{NodeName: "n", Objects: api, Events: events, Clock: r.Clock, Limit: time.Minute},
	})})
	if err != nil {
		t.Fatal(err)
	}
	p := volumetest.Pod(volumetest.ClaimVol(false))
	claim.Spec.Resources.Requests, claim.Status.AllocatedResources, pv.Spec.Capacity = size("2Gi"), size("2Gi"), size("2Gi")
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	if _, err := m.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{string(v1.PersistentVolumeClaimNodeResizeInProgress), `"capacity":{"storage":"2Gi"}`} {
		select {
		case patch := <-api.patches:
			if !strings.Contains(patch, want) {
				t.Errorf("the claim's status got %s, want %s", patch, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the claim's status did not get %s", want)
		}
	}
	if got := strings.Join(events.Take(), "\n"); strings.Count(got, "FileSystemResizeSuccessful") != 2 {
		t.Errorf("Events:\n%s\nwant FileSystemResizeSuccessful of pod and claim", got)
	}
}
