package kinds

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/atomic"
)

// downwardAPI is the source of downwardAPI volumes: fields of the pod.
type downwardAPI struct {
	stateless
	node Node
}

func (downwardAPI) Has(v volume.Volume) bool { return v.Spec.DownwardAPI != nil }

func (k downwardAPI) content(_ context.Context, v volume.Volume) (atomic.Content, error) {
	return k.read(v.Pod, v.Spec.DownwardAPI.Items, v.Spec.DownwardAPI.DefaultMode)
}

// read makes the files of items.
func (k downwardAPI) read(p *v1.Pod, items []v1.DownwardAPIVolumeFile, defaultMode *int32) (atomic.Content, error) {
	out := atomic.Content{}
	var errs []error
	for _, it := range items {
		var text string
		err := errors.New("want fieldRef or resourceFieldRef")
		switch {
		case it.FieldRef != nil:
			if path := it.FieldRef.FieldPath; strings.HasPrefix(path, "metadata.") {
				text, err = podspec.FieldValue(p, path, podspec.Addresses{})
			} else { // a file could not follow what becomes known only later
				err = fmt.Errorf("fieldPath %q is not supported in volumes; want a field of metadata", path)
			}
		case it.ResourceFieldRef != nil:
			var allocatable v1.ResourceList
			if n := k.node.Node(); n != nil {
				allocatable = n.Status.Allocatable
			}
			text, err = podspec.ResourceValue(p, &v1.Container{}, it.ResourceFieldRef, allocatable)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("downwardAPI item %q: %w", it.Path, err))
			continue
		}
		out[it.Path] = atomic.File{Data: []byte(text), Mode: modeOf(it.Mode, defaultMode)}
	}
	return out, errors.Join(errs...)
}
