package podspec

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func envPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-0", Namespace: "shop", UID: "u1",
			Labels:      map[string]string{"app": "web", "example.com/tier": "front"},
			Annotations: map[string]string{"b": "x\"y\n", "a": "1"},
		},
		Spec: v1.PodSpec{
			NodeName: "node-a", ServiceAccountName: "robot",
			Containers: []v1.Container{{Name: "app"}, {Name: "other", Resources: v1.ResourceRequirements{
				Limits:   v1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("64Mi"), "hugepages-2Mi": resource.MustParse("4Mi")},
				Requests: v1.ResourceList{"cpu": resource.MustParse("125m"), "memory": resource.MustParse("32Mi"), "ephemeral-storage": resource.MustParse("1Gi")},
			}}},
			InitContainers: []v1.Container{{Name: "init", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("3")}}}},
		},
	}
}

func addrs(words ...string) []netip.Addr {
	var out []netip.Addr
	for _, w := range words {
		out = append(out, netip.MustParseAddr(w))
	}
	return out
}

func TestFieldValue(t *testing.T) {
	at := Addresses{Pod: addrs("fd00::5", "10.1.0.5"), Host: addrs("192.168.0.1", "fd01::1")}
	for _, test := range []struct {
		path, want, err string
		at              *Addresses
		host            bool
	}{
		{path: "metadata.name", want: "web-0"},
		{path: "metadata.namespace", want: "shop"},
		{path: "metadata.uid", want: "u1"},
		{path: "metadata.labels", want: "app=\"web\"\nexample.com/tier=\"front\""},
		{path: "metadata.annotations", want: "a=\"1\"\nb=\"x\\\"y\\n\""},
		{path: "metadata.labels['example.com/tier']", want: "front"},
		{path: "metadata.labels['none']", want: ""},
		{path: "metadata.labels['']", err: "not a label name"},
		{path: "metadata.labels['a b']", err: "not a label name"},
		{path: "metadata.annotations['b']", want: "x\"y\n"},
		{path: "metadata.annotations['A']", want: ""},
		{path: "spec.nodeName", want: "node-a"},
		{path: "spec.host", want: "node-a"},
		{path: "spec.serviceAccountName", want: "robot"},
		{path: "status.hostIP", want: "192.168.0.1"},
		{path: "status.hostIPs", want: "192.168.0.1,fd01::1"},
		{path: "status.podIP", want: "10.1.0.5"},
		{path: "status.podIPs", want: "10.1.0.5,fd00::5"},
		{path: "status.podIP", at: &Addresses{Host: at.Host}, want: ""},
		{path: "status.podIP", at: &Addresses{Host: at.Host}, host: true, want: "192.168.0.1"},
		{path: "status.podIPs", at: &Addresses{Host: at.Host}, host: true, want: "192.168.0.1,fd01::1"},
		{path: "status.podIP", at: &Addresses{Pod: at.Pod}, want: "fd00::5"},
		{path: "status.hostIP", at: &Addresses{}, err: "no address yet"},
		{path: "spec.containers", err: "field label not supported: spec.containers"},
		{path: "metadata.uid['x']", err: "field label not supported"},
		{path: "metadata.labels['x", err: "field label not supported"},
		{path: "", err: "field label not supported"},
	} {
		p := envPod()
		p.Spec.HostNetwork = test.host
		where := at
		if test.at != nil {
			where = *test.at
		}
		got, err := FieldValue(p, test.path, where)
		if got != test.want || (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: got %q %v, want %q %s", test.path, got, err, test.want, test.err)
		}
	}
}

func TestResourceValue(t *testing.T) {
	allocatable := v1.ResourceList{"cpu": resource.MustParse("3500m"), "memory": resource.MustParse("2Gi"), "ephemeral-storage": resource.MustParse("10Gi")}
	podLimits := &v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("1")}}
	for _, test := range []struct {
		container, resource, divisor string
		pod                          *v1.ResourceRequirements
		want, err                    string
	}{
		{resource: "limits.cpu", want: "4"},
		{resource: "limits.cpu", divisor: "1m", want: "3500"},
		{resource: "limits.cpu", pod: podLimits, want: "1"},
		{resource: "limits.memory", pod: podLimits, want: "2147483648"},
		{resource: "limits.memory", divisor: "1Mi", want: "2048"},
		{resource: "limits.ephemeral-storage", divisor: "1Gi", want: "10"},
		{resource: "limits.hugepages-2Mi", want: "0"},
		{resource: "requests.cpu", want: "0"},
		{resource: "requests.memory", want: "0"},
		{container: "other", resource: "limits.cpu", want: "1"},
		{container: "other", resource: "limits.cpu", divisor: "1m", want: "250"},
		{container: "other", resource: "requests.cpu", divisor: "100m", want: "2"},
		{container: "other", resource: "requests.memory", divisor: "1Ki", want: "32768"},
		{container: "other", resource: "requests.memory", divisor: "1G", want: "1"},
		{container: "other", resource: "requests.memory", divisor: "1m", want: "33554432"},
		{container: "other", resource: "requests.ephemeral-storage", divisor: "1Mi", want: "1024"},
		{container: "other", resource: "limits.hugepages-2Mi", divisor: "1Mi", want: "4"},
		{container: "init", resource: "limits.cpu", want: "3"},
		{container: "init", resource: "limits.memory", divisor: "1Gi", want: "2"},
		{container: "absent", resource: "limits.cpu", err: "container absent not found"},
		{resource: "limits.vendor.com/device", err: "unsupported container resource: limits.vendor.com/device"},
		{resource: "cpu", err: "unsupported container resource: cpu"},
		{resource: "usage.cpu", err: "unsupported container resource: usage.cpu"},
	} {
		p := envPod()
		p.Spec.Resources = test.pod
		ref := &v1.ResourceFieldSelector{ContainerName: test.container, Resource: test.resource}
		if test.divisor != "" {
			ref.Divisor = resource.MustParse(test.divisor)
		}
		got, err := ResourceValue(p, &p.Spec.Containers[0], ref, allocatable)
		if got != test.want || (err == nil) != (test.err == "") || (err != nil && err.Error() != test.err) {
			t.Errorf("%+v: got %q %v", test, got, err)
		}
	}
}
