package podspec

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Addresses are the values of the downward API's fields status.podIP(s) and status.hostIP(s).
type Addresses struct {
	Pod  []netip.Addr // empty with hostNetwork: the host's apply
	Host []netip.Addr // primary first
}

// ordered returns the pod's addresses, those of the host's primary family first, as in status.podIPs.
func (a Addresses) ordered(hostNetwork bool) []netip.Addr {
	if len(a.Pod) == 0 && hostNetwork {
		return a.Host
	}
	if len(a.Host) == 0 {
		return a.Pod
	}
	v4 := a.Host[0].Is4()
	out := slices.Clone(a.Pod)
	slices.SortStableFunc(out, func(x, y netip.Addr) int {
		switch {
		case x.Is4() == y.Is4():
			return 0
		case x.Is4() == v4:
			return -1
		default:
			return 1
		}
	})
	return out
}

func joinAddrs(addrs []netip.Addr) string {
	words := make([]string, len(addrs))
	for i, a := range addrs {
		words[i] = a.String()
	}
	return strings.Join(words, ",")
}

// FieldValue resolves a field of the downward API (ObjectFieldSelector.fieldPath), for environments and volumes. Whole maps
// (metadata.labels, metadata.annotations) become sorted lines key="value".
func FieldValue(pod *v1.Pod, path string, at Addresses) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName", "spec.host": // the latter is the name before v1
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		if len(at.Host) == 0 {
			return "", fmt.Errorf("cannot resolve field %s: this node has no address yet", path)
		}
		if path == "status.hostIP" {
			return at.Host[0].String(), nil
		}
		return joinAddrs(at.Host), nil
	case "status.podIP":
		if ips := at.ordered(pod.Spec.HostNetwork); len(ips) > 0 {
			return ips[0].String(), nil
		}
		return "", nil
	case "status.podIPs":
		return joinAddrs(at.ordered(pod.Spec.HostNetwork)), nil
	}
	if key, ok := subscript(path, "metadata.labels"); ok {
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			return "", fmt.Errorf("field %s: the key is not a label name: %s", path, strings.Join(errs, "; "))
		}
		return pod.Labels[key], nil
	}
	if key, ok := subscript(path, "metadata.annotations"); ok {
		if errs := validation.IsQualifiedName(strings.ToLower(key)); len(errs) > 0 {
			return "", fmt.Errorf("field %s: the key is not an annotation name: %s", path, strings.Join(errs, "; "))
		}
		return pod.Annotations[key], nil
	}
	return "", fmt.Errorf("field label not supported: %s", path)
}

// subscript returns key from field['key'].
func subscript(path, field string) (key string, ok bool) {
	key, ok = strings.CutPrefix(path, field+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(key, "']")
}

func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+strconv.Quote(v))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// ResourceValue resolves a container's resource of the downward API (ResourceFieldSelector), rounded up to whole divisors. An unset limit
// is the pod's own limit, or else the node's allocatable amount.
func ResourceValue(pod *v1.Pod, container *v1.Container, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != container.Name {
		if container = namedContainer(pod, ref.ContainerName); container == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	list, name, ok := strings.Cut(ref.Resource, ".")
	supported := ok && (list == "limits" || list == "requests")
	switch v1.ResourceName(name) {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
	default:
		supported = supported && strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
	}
	if !supported {
		return "", fmt.Errorf("unsupported container resource: %s", ref.Resource)
	}
	var value resource.Quantity
	if list == "requests" {
		value = container.Resources.Requests[v1.ResourceName(name)]
	} else {
		value = effectiveLimit(pod, container, v1.ResourceName(name), allocatable)
	}
	amount, unit := value.Value(), ref.Divisor.Value()
	if v1.ResourceName(name) == v1.ResourceCPU {
		amount, unit = value.MilliValue(), ref.Divisor.MilliValue()
		if unit == 0 {
			unit = 1000
		}
	}
	unit = max(unit, 1)
	whole := amount / unit
	if amount%unit > 0 {
		whole++
	}
	return strconv.FormatInt(whole, 10), nil
}

func effectiveLimit(pod *v1.Pod, container *v1.Container, name v1.ResourceName, allocatable v1.ResourceList) resource.Quantity {
	limit := container.Resources.Limits[name]
	if !limit.IsZero() || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
		return limit
	}
	if pod.Spec.Resources != nil {
		if own := pod.Spec.Resources.Limits[name]; !own.IsZero() {
			return own
		}
	}
	return allocatable[name]
}

func namedContainer(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
