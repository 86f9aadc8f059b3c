package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestClaim(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	dir := t.TempDir()
	r.Bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}})
	p := volumetest.Pod(volumetest.ClaimVol(true))
	if paths := r.MustPrepare(p); paths["v"] != dir {
		t.Errorf("path %q, want %q", paths["v"], dir)
	}
	m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"})
	if err != nil || m.HostPath != dir || !m.ReadOnly {
		t.Errorf("mount %+v, %v", m, err)
	}
	// What a running pod was given stays, whatever becomes of the API server.
	r.API.Down = errors.New("connection refused")
	if r.MustPrepare(p); r.API.Asked != 1 {
		t.Errorf("asked %d times for the claim, want once", r.API.Asked)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if !paths.Exists(filepath.Join(dir, "f")) {
		t.Error("the volume's content went with the pod")
	}
}

func TestClaimHostPath(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	r.Bind("web-v", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}})
	p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}))
	r.API.Claims["shop/web-v"].OwnerReferences = []metav1.OwnerReference{{UID: p.UID, Controller: new(true)}}
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "PersistentVolume pv has kind nfs") {
		t.Errorf("nfs: %v", err)
	}
	r.API.Volumes["pv"].Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: `\\.\pipe\x`}}
	if paths := r.MustPrepare(p); paths["v"] != `\\.\pipe\x` {
		t.Errorf("path %q", paths["v"])
	}
}

// TestNoSockets: on Server 2016 volumes of CSI drivers are refused with the reason.
func TestNoSockets(t *testing.T) {
	const why = "CSI drivers serve on Unix sockets, which Windows has from Server 2019 on (build 17063); this host has build 14393; use "
	r := volumetest.New(t, volumetest.Windows())
	r.Bind("data", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "smb.csi.k8s.io"}})
	if _, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.ClaimVol(false))); err == nil || !strings.Contains(err.Error(), "PersistentVolume pv needs the CSI driver smb.csi.k8s.io: "+why) {
		t.Errorf("a claim: %v", err)
	}
	inline := volumetest.Vol("v", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "secrets-store.csi.k8s.io"}})
	if _, err := r.Prepare(t.Context(), volumetest.Pod(inline)); err == nil || !strings.Contains(err.Error(), "volume kind csi needs the CSI driver secrets-store.csi.k8s.io: "+why) {
		t.Errorf("inline: %v", err)
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
			v.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
		},
		"has volumeMode Filesystem, but is specified in volumeDevices": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}
		},
		"of kind hostPath has volumeMode Block": func(_ *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.VolumeMode, v.Spec.PersistentVolumeSource = new(v1.PersistentVolumeBlock), v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/dev/null"}}
		},
		"is not a block device": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.VolumeMode, v.Spec.Local.Path, p.Spec.Containers = new(v1.PersistentVolumeBlock), os.DevNull, nil
		},
		"was not created for pod shop/web": func(p *v1.Pod, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
		},
	} {
		r := volumetest.New(t, volumetest.Linux())
		c, pv := r.Bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: missing}})
		r.API.Claims["shop/web-v"] = c
		p := volumetest.Pod(volumetest.ClaimVol(false))
		p.Spec.Containers = []v1.Container{{Name: "app"}}
		change(p, c, pv)
		if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "v" : `) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
