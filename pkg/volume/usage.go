package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
)

// Places says where the volumes of p lie that its figures are made of: those in the pod's own directory and those behind claims. HostPaths
// and images, which are many pods' and read-only, are not the pod's. It touches nothing behind a claim, which may hang, does not wait for a
// Prepare of the pod, and does not hold one up. With an error come the other places.
func (m *Manager) Places(p *v1.Pod) (out []disk.Place, err error) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.HostPath != nil || v.Image != nil {
			continue
		}
		place := disk.Place{Volume: v.Name, EmptyDir: v.EmptyDir != nil}
		if place.Claim, _ = claimOf(p, v); place.Claim != "" {
			b, known := m.backingFor(p.UID, v.Name)
			if !known || b.hostPath != nil { // of a hostPath volume upstream tells nothing either
				continue
			}
			place.Path, place.Own = b.path, true
			out = append(out, place)
			continue
		}
		path, wrong := m.path(p, v)
		if wrong == nil && m.mounts != nil {
			place.Own, wrong = m.mounts.isMount(path)
		}
		if wrong != nil {
			err = fmt.Errorf("cannot find volume %q: %w", v.Name, wrong)
			continue
		}
		place.Path, place.Memory = path, place.Own && place.EmptyDir
		out = append(out, place)
	}
	return out, err
}

// Dir is the directory of one pod; "": it cannot have one.
func (m *Manager) Dir(uid types.UID) string {
	dir, err := m.podDir(uid)
	if err != nil {
		return ""
	}
	return dir
}
