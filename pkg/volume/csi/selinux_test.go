package csi_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// TestSELinux: on a host with SELinux, a driver that supports it gets the label of the pod's containers as a mount option, when it stages and when it
// publishes a volume that no other pod can use. Upstream's records have the label.
func TestSELinux(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	once, many := v1.ReadWriteOncePod, v1.ReadWriteMany
	for name, test := range map[string]struct {
		host  string
		mode  v1.PersistentVolumeAccessMode
		mount *bool
		level string
		want  []string
	}{
		"labelled":               {"system_u:object_r:container_file_t:s0", once, new(true), "s0:c1,c2", []string{"noatime", `context="` + label + `"`}},
		"no SELinux here":        {"", once, new(true), "s0:c1,c2", []string{"noatime"}},
		"the driver cannot":      {"system_u:object_r:container_file_t:s0", once, new(false), "s0:c1,c2", []string{"noatime"}},
		"the driver says naught": {"system_u:object_r:container_file_t:s0", once, nil, "s0:c1,c2", []string{"noatime"}},
		"several pods":           {"system_u:object_r:container_file_t:s0", many, new(true), "s0:c1,c2", []string{"noatime"}},
		"no options":             {"system_u:object_r:container_file_t:s0", once, new(true), "", []string{"noatime"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.selinux = test.host
			r.restart()
			r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false), SELinuxMount: test.mount})
			p := r.labelledPod(test.mode, test.level)
			r.MustPrepare(p)
			for _, call := range r.driver.Calls("NodeStageVolume", "NodePublishVolume") {
				var capability *pb.VolumeCapability
				switch request := call.Request.(type) {
				case *pb.NodeStageVolumeRequest:
					capability = request.VolumeCapability
				case *pb.NodePublishVolumeRequest:
					capability = request.VolumeCapability
				}
				if got := capability.GetMount().GetMountFlags(); !slices.Equal(got, test.want) {
					t.Errorf("%s has the options %q, want %q", call.Method, got, test.want)
				}
			}
			recorded := ""
			if len(test.want) > 1 {
				recorded = label
			}
			for _, dir := range []string{"pods/a/volumes/kubernetes.io~csi/pv", "plugins/kubernetes.io/csi/disk.example.com/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123"} {
				var record map[string]string
				b, err := os.ReadFile(r.path(dir, "vol_data.json"))
				if err == nil {
					err = json.Unmarshal(b, &record)
				}
				if err != nil || record["seLinuxMountContext"] != recorded {
					t.Errorf("%s: %s, %v; want the label %q", dir, b, err, recorded)
				}
			}
			r.restart()
			r.MustPrepare(p)
			r.want("Stage Publish")
			r.mustClean("a")
			r.nothingLeft()
		})
	}
}

// labelledPod is a pod with the claim data, whose volume has that access mode alone.
func (r *rig) labelledPod(mode v1.PersistentVolumeAccessMode, level string) *v1.Pod {
	p := r.pod("a")
	pv := r.API.Volumes["pv"]
	pv.Spec.AccessModes, pv.Spec.MountOptions = []v1.PersistentVolumeAccessMode{mode}, []string{"noatime"}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	if level != "" {
		p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	}
	return p
}

// TestSELinuxConflict: a volume that containers of a pod want with different labels is refused before the driver is called.
func TestSELinuxConflict(t *testing.T) {
	r := newRig(t)
	r.selinux = "system_u:object_r:container_file_t:s0"
	r.restart()
	r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false), SELinuxMount: new(true)})
	p := r.labelledPod(v1.ReadWriteOncePod, "s0:c1,c2")
	other := *p.Spec.Containers[0].DeepCopy()
	other.Name, other.SecurityContext = "other", &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c8"}}
	p.Spec.Containers = append(p.Spec.Containers, other)
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "multiple SELinux labels found: system_u:object_r:container_file_t:s0:c1,c2,system_u:object_r:container_file_t:s0:c8") {
		t.Errorf("Prepare: %v", err)
	}
	r.want("")
	r.mustClean("a")
	r.nothingLeft()
}
