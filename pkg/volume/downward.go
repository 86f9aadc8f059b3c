package volume

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// downward makes the files of a downwardAPI volume.
func (m *Manager) downward(p *v1.Pod, items []v1.DownwardAPIVolumeFile, defaultMode *int32) (payload, error) {
	out := payload{}
	var errs []error
	for _, it := range items {
		var text string
		err := errors.New("want fieldRef or resourceFieldRef")
		switch {
		case it.FieldRef != nil:
			if path := it.FieldRef.FieldPath; strings.HasPrefix(path, "metadata.") {
				text, err = podspec.FieldValue(p, path, podspec.Addresses{})
			} else { // a file could not follow what comes to be known only later
				err = fmt.Errorf("fieldPath %q is not supported in volumes; want a field of metadata", path)
			}
		case it.ResourceFieldRef != nil:
			var allocatable v1.ResourceList
			if n := m.objects.Node(); n != nil {
				allocatable = n.Status.Allocatable
			}
			text, err = podspec.ResourceValue(p, &v1.Container{}, it.ResourceFieldRef, allocatable)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("downwardAPI item %q: %w", it.Path, err))
			continue
		}
		out[it.Path] = file{data: []byte(text), mode: modeOf(it.Mode, defaultMode)}
	}
	return out, errors.Join(errs...)
}
