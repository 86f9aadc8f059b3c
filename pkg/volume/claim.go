package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// Claims is what claims are resolved with; pod.Objects has it.
type Claims interface {
	Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
}

// claims leads from a pod's claims to PersistentVolumes. The source of a PersistentVolume cannot change, so that it is read once in the life
// of a pod: what a pod was given it keeps.
type claims struct {
	api Claims

	mu    sync.Mutex
	bound map[types.UID]map[string]*v1.PersistentVolume // by pod and name of the volume in its spec
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

// known is the PersistentVolume behind a volume of pod uid; nil: it was not prepared yet.
func (c *claims) known(uid types.UID, volume string) *v1.PersistentVolume {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bound[uid][volume]
}

// keep remembers what v, which was prepared, is bound to.
func (c *claims) keep(v Volume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.bound[v.Pod.UID]
	if of == nil {
		of = map[string]*v1.PersistentVolume{}
		c.bound[v.Pod.UID] = of
	}
	of[v.Spec.Name] = v.PV
}

func (c *claims) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.bound, uid)
}

// read finds what v's claim is bound to, with upstream's words for what is wrong.
func (c *claims) read(ctx context.Context, v Volume) (*v1.PersistentVolume, error) {
	p := v.Pod
	claim, err := c.api.Claim(ctx, p.Namespace, v.Claim)
	if err != nil {
		return nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	switch {
	case v.Spec.Ephemeral != nil && !metav1.IsControlledBy(claim, p):
		return nil, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", p.Namespace, v.Claim, p.Namespace, p.Name)
	case claim.DeletionTimestamp != nil:
		return nil, errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, errors.New("PVC is not bound")
	}
	pv, err := c.api.PersistentVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return nil, fmt.Errorf("failed to get PV %s from API server: %w", claim.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil:
		return nil, fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name)
	case pv.Spec.ClaimRef.UID != claim.UID:
		return nil, fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name, pv.Spec.ClaimRef.UID, claim.UID)
	}
	return pv, nil
}

// checkMode says why the pod cannot use what v is bound to as it wants: as a directory or as a device.
func (m *Manager) checkMode(v Volume) error {
	kind, ok := m.kindOf(&v)
	if !ok {
		return m.unsupported(v)
	}
	_, devices := kind.(BlockKind)
	mounted, device := usesOf(v.Pod, v.Spec.Name)
	switch block := v.Block(); {
	case block && (!devices || m.host.Platform.OS == "windows"):
		return fmt.Errorf("PersistentVolume %s of kind %s has volumeMode Block, which this node agent does not support for that kind on %s; want Filesystem",
			v.PV.Name, fieldOf(v.PV.Spec.PersistentVolumeSource), m.host.Platform.OS)
	case block && mounted:
		return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", v.Spec.Name)
	case !block && device:
		return fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", v.Spec.Name)
	}
	return nil
}

// usesOf says how containers of p use the volume of that name.
func usesOf(p *v1.Pod, name string) (mounted, device bool) {
	for _, c := range podspec.Containers(p) {
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(vm v1.VolumeMount) bool { return vm.Name == name })
		device = device || slices.ContainsFunc(c.VolumeDevices, func(vd v1.VolumeDevice) bool { return vd.Name == name })
	}
	return mounted, device
}

// csiDrivers are the successors of kinds that upstream has removed without a migration, by default names.
var csiDrivers = map[string]string{"cephfs": "cephfs.csi.ceph.com", "rbd": "rbd.csi.ceph.com"}

// successor says what there is on a system instead of a kind that it does not have; "": nothing in particular.
func successor(system, field string) string {
	switch {
	case csiDrivers[field] != "":
		return "the CSI driver " + csiDrivers[field] + ", on a Linux node"
	case system == "windows" && (field == "iscsi" || field == "fc"):
		return "the storage's CSI driver, or a flexVolume driver; Linux nodes have kind " + field
	}
	return ""
}

// unsupported says that this agent has no kind for v, and which it has.
func (m *Manager) unsupported(v Volume) error {
	switch {
	case v.Claim != "" && v.PV == nil:
		return fmt.Errorf("claim %q has not been prepared", v.Claim)
	case v.PV == nil:
		if instead := successor(m.host.Platform.OS, fieldOf(v.Spec.VolumeSource)); instead != "" {
			return fmt.Errorf("volume kind %s is not supported by this node agent; use a PersistentVolume of %s", fieldOf(v.Spec.VolumeSource), instead)
		}
		have := append(supported(m.kinds, func(s v1.VolumeSource) Volume { return Volume{Spec: &v1.Volume{VolumeSource: s}} }), "persistentVolumeClaim")
		if why := m.host.Platform.NoSockets(); why != nil && v.Spec.CSI != nil {
			return fmt.Errorf("volume kind csi needs the CSI driver %s: %w; use %s", v.Spec.CSI.Driver, why, oneOf(have))
		}
		return fmt.Errorf("volume kind %s is not supported by this node agent; use %s", fieldOf(v.Spec.VolumeSource), oneOf(have))
	}
	have := supported(m.kinds, func(s v1.PersistentVolumeSource) Volume {
		return Volume{Spec: &v1.Volume{}, PV: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: s}}}
	})
	if instead := successor(m.host.Platform.OS, fieldOf(v.PV.Spec.PersistentVolumeSource)); instead != "" {
		return fmt.Errorf("PersistentVolume %s has kind %s, which is not supported by this node agent; use one of %s", v.PV.Name, fieldOf(v.PV.Spec.PersistentVolumeSource), instead)
	}
	if why := m.host.Platform.NoSockets(); why != nil && v.PV.Spec.CSI != nil {
		return fmt.Errorf("PersistentVolume %s needs the CSI driver %s: %w; use %s", v.PV.Name, v.PV.Spec.CSI.Driver, why, oneOf(have))
	}
	return fmt.Errorf("PersistentVolume %s has kind %s, which is not supported by this node agent; use %s", v.PV.Name, fieldOf(v.PV.Spec.PersistentVolumeSource), oneOf(have))
}

// supported are the fields of a source that a kind has, in the API's order. in makes a volume of a source.
func supported[Source any](kinds []tableRow, in func(Source) Volume) (fields []string) {
	for field := range reflect.TypeFor[Source]().Fields() {
		var s Source
		reflect.ValueOf(&s).Elem().FieldByIndex(field.Index).Set(reflect.New(field.Type.Elem()))
		v := in(s)
		if slices.ContainsFunc(kinds, func(r tableRow) bool { return r.Has(v) }) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields = append(fields, name)
		}
	}
	return fields
}

// oneOf joins words: "a, b or c".
func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// fieldOf names the field that is set in a volume source.
func fieldOf(source any) string {
	fields := map[string]json.RawMessage{}
	if b, err := json.Marshal(source); err != nil || json.Unmarshal(b, &fields) != nil || len(fields) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
}
