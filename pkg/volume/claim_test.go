package volume

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bind gives the API server a bound claim and its volume.
func (r *rig) bind(claim string, source v1.PersistentVolumeSource) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	if r.api.claims == nil {
		r.api.claims, r.api.pvs = map[string]*v1.PersistentVolumeClaim{}, map[string]*v1.PersistentVolume{}
	}
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "shop", UID: "claim-1"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: source, ClaimRef: &v1.ObjectReference{UID: "claim-1"}}}
	r.api.claims["shop/"+claim], r.api.pvs["pv"] = c, pv
	return c, pv
}

func claimVol(readOnly bool) v1.Volume {
	return vol("v", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: readOnly}})
}

func TestClaim(t *testing.T) {
	r := newRig(t, linux)
	dir := t.TempDir()
	r.bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}})
	p := makePod(claimVol(true))
	if paths := r.prepare(p); paths["v"] != dir {
		t.Errorf("path %q, want %q", paths["v"], dir)
	}
	m, err := mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x"})
	if err != nil || m.HostPath != dir || !m.ReadOnly {
		t.Errorf("mount %+v, %v", m, err)
	}
	// What a running pod was given stays, whatever becomes of the API server.
	r.api.down = errors.New("connection refused")
	if r.prepare(p); r.api.asked != 1 {
		t.Errorf("asked %d times for the claim, want once", r.api.asked)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if !exists(filepath.Join(dir, "f")) {
		t.Error("the volume's content went with the pod")
	}
}

func TestClaimHostPath(t *testing.T) {
	r := newRig(t, windows)
	r.bind("web-v", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}})
	p := makePod(vol("v", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}))
	r.api.claims["shop/web-v"].OwnerReferences = []metav1.OwnerReference{{UID: p.UID, Controller: ptr(true)}}
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "PersistentVolume pv has kind nfs") {
		t.Errorf("nfs: %v", err)
	}
	r.api.pvs["pv"].Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: `\\.\pipe\x`}}
	if paths := r.prepare(p); paths["v"] != `\\.\pipe\x` {
		t.Errorf("path %q", paths["v"])
	}
}

func TestClaimErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no")
	for want, change := range map[string]func(*v1.Pod, *v1.PersistentVolumeClaim, *v1.PersistentVolume){
		"PVC is not bound": func(_ *v1.Pod, c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Status.Phase = v1.ClaimPending },
		"PVC is being deleted": func(_ *v1.Pod, c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.DeletionTimestamp = &metav1.Time{}
		},
		"does not point to claim.UID": func(_ *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) { v.Spec.ClaimRef.UID = "other" },
		"nil pv.Spec.ClaimRef":        func(_ *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) { v.Spec.ClaimRef = nil },
		"failed to get PV elsewhere":  func(_ *v1.Pod, c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Spec.VolumeName = "elsewhere" },
		`no" does not exist`:          func(*v1.Pod, *v1.PersistentVolumeClaim, *v1.PersistentVolume) {},
		"has volumeMode Block, but is specified in volumeMounts": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/x"}}
			v.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock)
		},
		"has volumeMode Filesystem, but is specified in volumeDevices": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}
		},
		"of kind hostPath has volumeMode Block": func(_ *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.VolumeMode, v.Spec.PersistentVolumeSource = ptr(v1.PersistentVolumeBlock), v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/dev/null"}}
		},
		"is not a block device": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.VolumeMode, v.Spec.Local.Path, p.Spec.Containers = ptr(v1.PersistentVolumeBlock), os.DevNull, nil
		},
		"CSI driver d": func(_ *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d"}}
		},
		"was not created for pod shop/web": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
		},
	} {
		r := newRig(t, linux)
		c, pv := r.bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: missing}})
		r.api.claims["shop/web-v"] = c
		p := makePod(claimVol(false))
		p.Spec.Containers = []v1.Container{{Name: "app"}}
		change(p, c, pv)
		if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "v" : `) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestTrustBundle(t *testing.T) {
	r := newRig(t, linux)
	block := func(s string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
	}
	bundle := func(name, signer, text string) certificatesv1beta1.ClusterTrustBundle {
		return certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"n": name}},
			Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	}
	r.api.bundles = []certificatesv1beta1.ClusterTrustBundle{
		bundle("a", "s", "# two\n"+block("2")+block("1")), bundle("b", "s", block("1")+block("3")), bundle("c", "other", block("4")),
	}
	all := &metav1.LabelSelector{}
	for name, c := range map[string]struct {
		src  v1.ClusterTrustBundleProjection
		want string
		err  string
	}{
		"by name":        {v1.ClusterTrustBundleProjection{Name: ptr("a")}, block("1") + block("2"), ""},
		"by signer":      {v1.ClusterTrustBundleProjection{SignerName: ptr("s"), LabelSelector: all}, block("1") + block("2") + block("3"), ""},
		"by label":       {v1.ClusterTrustBundleProjection{SignerName: ptr("s"), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"n": "b"}}}, block("1") + block("3"), ""},
		"no selector":    {v1.ClusterTrustBundleProjection{SignerName: ptr("s")}, "", "matched zero"},
		"missing":        {v1.ClusterTrustBundleProjection{Name: ptr("z")}, "", `"z" not found`},
		"optional":       {v1.ClusterTrustBundleProjection{Name: ptr("z"), Optional: ptr(true)}, "", ""},
		"nothing chosen": {v1.ClusterTrustBundleProjection{SignerName: ptr("s"), Optional: ptr(true)}, "", ""},
	} {
		c.src.Path = "ca.pem"
		p := makePod(vol("v", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: ptr(int32(0o444)), Sources: []v1.VolumeProjection{{ClusterTrustBundle: &c.src}}}}))
		paths, err := r.Prepare(t.Context(), p)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			if got := tree(t, paths["v"]); got != "ca.pem 444 "+c.want+"\n" {
				t.Errorf("%s: %s", name, got)
			}
		}
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
}
