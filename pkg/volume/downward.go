package volume

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
			text, err = field(p, it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			var allocatable v1.ResourceList
			if n := m.objects.Node(); n != nil {
				allocatable = n.Status.Allocatable
			}
			text, err = resourceField(p, it.ResourceFieldRef, allocatable)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("downwardAPI item %q: %w", it.Path, err))
			continue
		}
		out[it.Path] = file{data: []byte(text), mode: modeOf(it.Mode, defaultMode)}
	}
	return out, errors.Join(errs...)
}

// field is the value of a fieldRef that a volume may have (API: DownwardAPIVolumeFile.fieldRef).
func field(p *v1.Pod, path string) (string, error) {
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "metadata.labels":
		return lines(p.Labels), nil
	case "metadata.annotations":
		return lines(p.Annotations), nil
	}
	if key, ok := subscript(path, "metadata.labels"); ok {
		return p.Labels[key], nil
	}
	if key, ok := subscript(path, "metadata.annotations"); ok {
		return p.Annotations[key], nil
	}
	return "", fmt.Errorf("fieldPath %q is not supported in volumes; want metadata.name, namespace, uid, labels, annotations, labels['KEY'] or annotations['KEY']", path)
}

// subscript returns KEY of name['KEY'].
func subscript(path, name string) (string, bool) {
	rest, ok := strings.CutPrefix(path, name+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

// lines writes a map as key="value", sorted, one a line.
func lines(m map[string]string) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(k + "=" + strconv.Quote(m[k]))
	}
	return b.String()
}

// resourceField is the value of a resourceFieldRef: a container's limit or request in units of the divisor, rounded up. A container
// without that limit could use the whole node.
func resourceField(p *v1.Pod, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	c, err := containerNamed(p, ref.ContainerName)
	if err != nil {
		return "", err
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	r := v1.ResourceName(name)
	known := r == v1.ResourceCPU || r == v1.ResourceMemory || r == v1.ResourceEphemeralStorage || strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
	var q resource.Quantity
	switch {
	case !known:
		return "", fmt.Errorf("resource %q is not supported; want limits or requests of cpu, memory, ephemeral-storage or hugepages-*", ref.Resource)
	case kind == "limits":
		var ok bool
		if q, ok = c.Resources.Limits[r]; !ok || q.IsZero() {
			q = allocatable[r]
		}
	case kind == "requests":
		q = c.Resources.Requests[r]
	default:
		return "", fmt.Errorf("resource %q is not supported; want it to begin with limits. or requests.", ref.Resource)
	}
	value, unit := q.Value(), int64(1)
	if !ref.Divisor.IsZero() {
		unit = ref.Divisor.Value()
	}
	if r == v1.ResourceCPU {
		value, unit = q.MilliValue(), 1000
		if !ref.Divisor.IsZero() {
			unit = ref.Divisor.MilliValue()
		}
	}
	if unit <= 0 {
		return "", fmt.Errorf("divisor %s of resource %q is not positive", ref.Divisor.String(), ref.Resource)
	}
	return strconv.FormatInt((value+unit-1)/unit, 10), nil
}

func containerNamed(p *v1.Pod, name string) (*v1.Container, error) {
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i], nil
			}
		}
	}
	return nil, fmt.Errorf("container %s not found", name)
}
