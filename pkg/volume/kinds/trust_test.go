package kinds_test

import (
	"encoding/pem"
	"strings"
	"testing"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestTrustBundle(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	block := func(s string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
	}
	bundle := func(name, signer, text string) certificatesv1beta1.ClusterTrustBundle {
		return certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"n": name}},
			Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	}
	r.API.Bundles = []certificatesv1beta1.ClusterTrustBundle{
		bundle("a", "s", "# two\n"+block("2")+block("1")), bundle("b", "s", block("1")+block("3")), bundle("c", "other", block("4")),
	}
	all := &metav1.LabelSelector{}
	for name, c := range map[string]struct {
		src  v1.ClusterTrustBundleProjection
		want string
		err  string
	}{
		"by name":        {v1.ClusterTrustBundleProjection{Name: new("a")}, block("1") + block("2"), ""},
		"by signer":      {v1.ClusterTrustBundleProjection{SignerName: new("s"), LabelSelector: all}, block("1") + block("2") + block("3"), ""},
		"by label":       {v1.ClusterTrustBundleProjection{SignerName: new("s"), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"n": "b"}}}, block("1") + block("3"), ""},
		"no selector":    {v1.ClusterTrustBundleProjection{SignerName: new("s")}, "", "matched zero"},
		"missing":        {v1.ClusterTrustBundleProjection{Name: new("z")}, "", `"z" not found`},
		"optional":       {v1.ClusterTrustBundleProjection{Name: new("z"), Optional: new(true)}, "", ""},
		"nothing chosen": {v1.ClusterTrustBundleProjection{SignerName: new("s"), Optional: new(true)}, "", ""},
	} {
		c.src.Path = "ca.pem"
		p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: new(int32(0o444)), Sources: []v1.VolumeProjection{{ClusterTrustBundle: &c.src}}}}))
		paths, err := r.Prepare(t.Context(), p)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			if got := volumetest.Tree(t, paths["v"]); got != "ca.pem 444 "+c.want+"\n" {
				t.Errorf("%s: %s", name, got)
			}
		}
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
}
