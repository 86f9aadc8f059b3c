package kinds_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestToken(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: new(int32(0o644)), Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(1000))}},
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "vault", Audience: "vault"}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
	}}}))
	dir := r.MustPrepare(p)["v"]
	first := "namespace 644 shop\ntoken 644 shop/default [] for uid-1 #1\nvault 644 shop/default [vault] for uid-1 #2\n"
	if got := volumetest.Tree(t, dir); got != first {
		t.Errorf("first:\n%s", got)
	}
	r.Clock.SetTime(r.Clock.Now().Add(799 * time.Second))
	r.MustPrepare(p)
	if got := volumetest.Tree(t, dir); got != first || r.API.Tokens != 2 {
		t.Errorf("before its time:\n%s", got)
	}
	r.Clock.SetTime(r.Clock.Now().Add(time.Second))
	r.API.Down = errors.New("connection refused")
	r.MustPrepare(p)
	if got := volumetest.Tree(t, dir); got != first {
		t.Errorf("API away:\n%s", got)
	}
	r.API.Down = nil
	r.MustPrepare(p)
	if got := volumetest.Tree(t, dir); got != strings.Replace(first, "#1", "#3", 1) {
		t.Errorf("renewed:\n%s", got)
	}
	// One user for all containers: the token is only theirs.
	if os.Geteuid() == 0 {
		p.UID, p.Spec.SecurityContext = "uid-3", &v1.PodSecurityContext{RunAsUser: new(int64(1234))}
		if got := volumetest.Tree(t, r.MustPrepare(p)["v"]); !strings.Contains(got, "token 600 ") || !strings.Contains(got, "namespace 644 ") {
			t.Errorf("one user:\n%s", got)
		}
		p.UID, p.Spec.SecurityContext = "uid-4", &v1.PodSecurityContext{FSGroup: new(int64(555))}
		if got := volumetest.Tree(t, r.MustPrepare(p)["v"]); !strings.Contains(got, "token 640 ") || !strings.Contains(got, "namespace 644 ") {
			t.Errorf("group:\n%s", got)
		}
	}
}
