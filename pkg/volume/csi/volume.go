package csi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/selinux"
)

// key names a volume on this node. Calls with the same key never overlap.
type key struct{ driver, handle string }

// Unique implements inuse.Key.
func (k key) Unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName(pluginName + "/" + k.driver + "^" + k.handle)
}

// attachment returns the name of the volume's VolumeAttachment to node.
func (k key) attachment(node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(k.handle+k.driver+node)))
}

// described is one CSI volume of a pod, from its API objects.
type described struct {
	key
	spec       string // name of its directories: the PersistentVolume's, or inline the volume's in the pod's spec
	ephemeral  bool
	migrated   bool // translated from an in-tree kind
	block      bool
	readOnly   bool
	fsType     string
	mode       v1.PersistentVolumeAccessMode
	modes      []v1.PersistentVolumeAccessMode
	options    []string
	attributes map[string]string
	label      string // with which it is mounted on a host with SELinux, among the options; "": none. See labelled
	// Secrets; nil: the volume has none.
	stageSecret, publishSecret *v1.SecretReference
}

// describe returns what calls need of v. It is pure.
func describe(v volume.Volume) (described, error) {
	pv, migrated, err := sourceOf(v)
	if err != nil {
		return described{}, err
	}
	if pv == nil {
		return describeInline(v)
	}
	source := pv.Spec.CSI
	d := described{
		key: key{source.Driver, source.VolumeHandle}, spec: pv.Name, migrated: migrated, block: v.Block(), readOnly: v.ReadOnly,
		fsType: source.FSType, mode: v1.ReadWriteOnce, modes: pv.Spec.AccessModes, options: pv.Spec.MountOptions,
		attributes: source.VolumeAttributes, stageSecret: source.NodeStageSecretRef, publishSecret: source.NodePublishSecretRef,
	}
	if len(d.modes) > 0 {
		d.mode = d.modes[0]
	}
	if d.block {
		d.fsType, d.options = "", nil
	}
	if v.PV == nil {
		d.readOnly = source.ReadOnly
	}
	switch {
	case source.Driver == "":
		return d, fmt.Errorf("PersistentVolume %s: spec.csi.driver is empty; want the name of a CSI driver", pv.Name)
	case source.VolumeHandle == "":
		return d, fmt.Errorf("PersistentVolume %s: spec.csi.volumeHandle is empty; want the driver's name of the volume", pv.Name)
	case d.block && slices.Contains(deviceDirs, d.spec):
		return d, fmt.Errorf("PersistentVolume %s: metadata.name is that of a directory of all block volumes; want another name for a volume of volumeMode Block", pv.Name)
	}
	return d, nil
}

func describeInline(v volume.Volume) (described, error) {
	source := v.Spec.CSI
	handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(v.Pod.UID)+v.Spec.Name)))
	d := described{key: key{source.Driver, handle}, spec: v.Spec.Name, ephemeral: true, mode: v1.ReadWriteOnce, attributes: source.VolumeAttributes}
	if source.ReadOnly != nil {
		d.readOnly = *source.ReadOnly
	}
	if source.FSType != nil {
		d.fsType = *source.FSType
	}
	if ref := source.NodePublishSecretRef; ref != nil {
		d.publishSecret = &v1.SecretReference{Name: ref.Name, Namespace: v.Pod.Namespace}
	}
	if source.Driver == "" {
		return d, errors.New("csi.driver is empty; want the name of a CSI driver")
	}
	return d, nil
}

func (d described) lifecycle() storagev1.VolumeLifecycleMode {
	if d.ephemeral {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// rules are what a driver's CSIDriver object requests.
type rules struct {
	attach          bool
	podInfo         bool
	republish       bool
	tokens          []storagev1.TokenRequest
	tokensInSecrets bool
	group           storagev1.FSGroupPolicy
	seLinux         bool // volumes can be mounted with a label of SELinux
}

// rulesFor reads a driver's object, nil when there is none, for a volume. The error, in upstream's words, says that the volume must not be used.
// It is pure.
func rulesFor(d described, object *storagev1.CSIDriver) (rules, error) {
	mode := d.lifecycle()
	if object == nil {
		if d.ephemeral {
			return rules{}, fmt.Errorf(pluginName+": mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (no CSIDriver object)", mode, d.driver)
		}
		return rules{attach: true, group: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}, nil
	}
	spec := &object.Spec
	modes := spec.VolumeLifecycleModes
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if !slices.Contains(modes, mode) {
		return rules{}, fmt.Errorf(pluginName+": mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (only supports %q)", mode, d.driver, modes)
	}
	r := rules{
		attach: !d.ephemeral && attachRequired(object), podInfo: isTrue(spec.PodInfoOnMount), republish: isTrue(spec.RequiresRepublish),
		tokens: spec.TokenRequests, tokensInSecrets: isTrue(spec.ServiceAccountTokenInSecrets), group: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
		seLinux: isTrue(spec.SELinuxMount),
	}
	if spec.FSGroupPolicy != nil && *spec.FSGroupPolicy != "" {
		r.group = *spec.FSGroupPolicy
	}
	return r, nil
}

// labelled returns d with the SELinux label that pod p's containers need, among its mount options. files is the label of containers' files, "" on a
// host without SELinux. Volumes with another access mode than ReadWriteOncePod, which pods with different labels may use at the same time, are left
// alone, as in upstream without the gate SELinuxMount. The error, in upstream's words, says that the containers disagree. It is pure.
func labelled(d described, r rules, files string, p *v1.Pod, volume string) (described, error) {
	if files == "" || !r.seLinux || d.block || d.ephemeral || !slices.Equal(d.modes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}) {
		return d, nil
	}
	label, err := selinux.Label(files, p, volume)
	if err != nil || label == "" {
		return d, err
	}
	d.label, d.options = label, append(slices.Clip(d.options), selinux.Option(label))
	return d, nil
}

// attachRequired reports whether a controller attaches the driver's volumes; object may be nil.
func attachRequired(object *storagev1.CSIDriver) bool {
	return object == nil || object.Spec.AttachRequired == nil || *object.Spec.AttachRequired
}

func isTrue(b *bool) bool { return b != nil && *b }

// changesGroup reports whether the agent gives the volume to the pod's fsGroup. It is pure.
func changesGroup(d described, policy storagev1.FSGroupPolicy) bool {
	switch {
	case d.block, d.readOnly, policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case d.fsType == "":
		return false
	}
	return d.ephemeral || slices.Contains(d.modes, v1.ReadWriteOnce) || slices.Contains(d.modes, v1.ReadWriteOncePod)
}
