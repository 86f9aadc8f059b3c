package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// backing is what a claim of a pod turned out to mean on this host. The source of a PersistentVolume cannot change, so that it is asked
// for once in the life of a pod. Another kind of storage (CSI) gets another case in backingOf and prepareBacking.
type backing struct {
	pv   string // name of the PersistentVolume
	path string
	// hostPath is set for a volume that is not to be owned by the pod's fsGroup; else it is a local one.
	hostPath *v1.HostPathVolumeSource
	block    bool // a block device (volumeMode Block), not a directory
}

// claimOf is the claim that v stands for: the one that it names, or for a generic ephemeral volume the one made for the pod. "": none.
func claimOf(p *v1.Pod, v *v1.Volume) (name string, readOnly bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name, false
	}
	return "", false
}

// prepareClaim finds out what v means and makes it ready, with upstream's words for what is wrong. A pod that was given the volume keeps it.
func (m *Manager) prepareClaim(ctx context.Context, p *v1.Pod, v *v1.Volume) (string, error) {
	b, known := m.backingFor(p.UID, v.Name)
	if !known {
		name, _ := claimOf(p, v)
		var err error
		if b, err = m.readClaim(ctx, p, v, name); err != nil {
			return "", fmt.Errorf("error processing PVC %s/%s: %w", p.Namespace, name, err)
		}
	}
	if err := m.prepareBacking(p, v, b); err != nil {
		return "", err
	}
	m.mu.Lock()
	m.pods[p.UID].claims[v.Name] = b
	m.mu.Unlock()
	return b.path, nil
}

// backingFor is what the claim behind a volume of pod uid turned out to mean.
func (m *Manager) backingFor(uid types.UID, volume string) (backing, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.pods[uid]
	if s == nil {
		return backing{}, false
	}
	b, known := s.claims[volume]
	return b, known
}

func (m *Manager) readClaim(ctx context.Context, p *v1.Pod, v *v1.Volume, name string) (backing, error) {
	claim, err := m.objects.Claim(ctx, p.Namespace, name)
	if err != nil {
		return backing{}, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	switch {
	case v.Ephemeral != nil && !metav1.IsControlledBy(claim, p):
		return backing{}, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", p.Namespace, name, p.Namespace, p.Name)
	case claim.DeletionTimestamp != nil:
		return backing{}, errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return backing{}, errors.New("PVC is not bound")
	}
	pv, err := m.objects.PersistentVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return backing{}, fmt.Errorf("failed to get PV %s from API server: %w", claim.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil:
		return backing{}, fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name)
	case pv.Spec.ClaimRef.UID != claim.UID:
		return backing{}, fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name, pv.Spec.ClaimRef.UID, claim.UID)
	}
	b, err := m.backingOf(pv)
	if err != nil {
		return b, err
	}
	mounted, device := usesOf(p, v.Name)
	switch {
	case b.block && mounted:
		return b, fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", v.Name)
	case !b.block && device:
		return b, fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", v.Name)
	}
	return b, nil
}

// usesOf says how containers of p use the volume of that name.
func usesOf(p *v1.Pod, name string) (mounted, device bool) {
	for _, c := range podspec.Containers(p) {
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(vm v1.VolumeMount) bool { return vm.Name == name })
		device = device || slices.ContainsFunc(c.VolumeDevices, func(vd v1.VolumeDevice) bool { return vd.Name == name })
	}
	return mounted, device
}

func (m *Manager) backingOf(pv *v1.PersistentVolume) (backing, error) {
	b := backing{pv: pv.Name, block: pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock}
	var err error
	switch s := pv.Spec.PersistentVolumeSource; {
	case b.block && (s.Local == nil || m.cfg.Platform.OS == "windows"):
		err = fmt.Errorf("PersistentVolume %s of kind %s has volumeMode Block, which this node agent has for local ones on Linux only; want Filesystem", pv.Name, kindOf(s))
	case s.HostPath != nil:
		b.hostPath = s.HostPath
		b.path, err = hostPath(m.cfg.Platform, s.HostPath.Path)
	case s.Local != nil:
		b.path, err = hostPath(m.cfg.Platform, s.Local.Path)
	case s.CSI != nil:
		err = fmt.Errorf("PersistentVolume %s needs the CSI driver %s, and CSI is not supported by this node agent yet; use a hostPath or local one", pv.Name, s.CSI.Driver)
	default:
		err = fmt.Errorf("PersistentVolume %s has kind %s, which is not supported by this node agent; use hostPath or local", pv.Name, kindOf(s))
	}
	return b, err
}

// prepareBacking makes what lies at b ready for p. A local volume must be there, and belongs to the pod's fsGroup from the first use on.
func (m *Manager) prepareBacking(p *v1.Pod, v *v1.Volume, b backing) error {
	if b.hostPath != nil {
		return m.prepareHostPath(b.hostPath, b.path)
	}
	fi, err := os.Stat(b.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("path %q does not exist", b.path)
	case err != nil:
		return fmt.Errorf("cannot examine local volume: %w", err)
	case b.block:
		if fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0 {
			return fmt.Errorf("path %q of PersistentVolume %s is not a block device; volumeMode Block wants one", b.path, b.pv)
		}
		return nil
	case !fi.IsDir():
		return fmt.Errorf("path %q of PersistentVolume %s is not a directory; want one, or volumeMode Block for a block device", b.path, b.pv)
	}
	mark, err := m.mark(p.UID, localName, v.Name)
	if err != nil || exists(mark) {
		return err
	}
	if _, readOnly := claimOf(p, v); !readOnly {
		if err := m.setGroup(b.path, p.Spec.SecurityContext, false); err != nil {
			return err
		}
	}
	return setMark(mark)
}

// Devices implements pod.Volumes. Prepare has made the volumes before. An error names the volumeDevice.
func (m *Manager) Devices(p *v1.Pod, c *v1.Container) ([]pod.Device, error) {
	var out []pod.Device
	for _, vd := range c.VolumeDevices {
		i := slices.IndexFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Name == vd.Name })
		if i < 0 {
			return nil, fmt.Errorf("cannot give device %q to container %q: spec.volumes has no volume of that name", vd.Name, c.Name)
		}
		_, readOnly := claimOf(p, &p.Spec.Volumes[i])
		b, known := m.backingFor(p.UID, vd.Name)
		if !known || !b.block {
			return nil, fmt.Errorf("cannot give device %q to container %q: its volume has no volumeMode Block", vd.Name, c.Name)
		}
		host, err := filepath.EvalSymlinks(b.path)
		if err != nil {
			return nil, fmt.Errorf("cannot give device %q to container %q: %w", vd.Name, c.Name, err)
		}
		out = append(out, pod.Device{HostPath: host, ContainerPath: vd.DevicePath, ReadOnly: readOnly})
	}
	return out, nil
}
