package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/disk"
)

// Places says where the volumes of p lie that its figures are made of: those that their kinds count as the pod's. It does not touch what lies
// behind a claim, which may hang, does not wait for a Prepare of the pod, and does not hold one up. An error comes with the other places.
func (m *Manager) Places(p *v1.Pod) (out []disk.Place, err error) {
	if _, err := m.podDir(p.UID); err != nil {
		return nil, err
	}
	for i := range p.Spec.Volumes {
		v := m.see(p, &p.Spec.Volumes[i])
		if v.Claim != "" && v.PV == nil {
			continue // not prepared yet
		}
		kind, ok := m.kindOf(&v)
		if !ok {
			err = fmt.Errorf("cannot find volume %q: %w", v.Spec.Name, m.unsupported(v))
			continue
		}
		place, counts, wrong := kind.Usage(v)
		if wrong != nil {
			err = fmt.Errorf("cannot find volume %q: %w", v.Spec.Name, wrong)
			continue
		}
		if counts {
			place.Volume, place.Claim = v.Spec.Name, v.Claim
			out = append(out, place)
		}
	}
	return out, err
}
