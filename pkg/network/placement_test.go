package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// Pods that stay on the network of a former mode are reported once, each on itself and all on the Node.
func TestPodsOnOtherNetwork(t *testing.T) {
	r := newPlugged(t, Config{Platform: onLinux})
	m := r.Manager
	said := func() []string { return append(slices.Clone(r.pods.events), r.node.events...) }
	m.SetNode(nodeWith("10.244.1.0/24"))
	see := func(name, network string, running, host bool) {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{HostNetwork: host}}
		m.Attachments(p, pod.Observed{Sandboxes: []pod.Sandbox{{ID: name, Running: running, Network: network, PID: 1}}})
	}
	see("stays", "winkube", true, false)
	see("ended", "winkube", false, false)
	see("hosts", "host", true, true)
	see("new", "none", true, false)
	for range 2 {
		if err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`shop/stays stays PodsOnOtherNetwork: The pod is on the engine's network "winkube", and new pods of this node get "none" (--network-mode=cni): it may reach neither them nor services; recreate it`,
		`Warning PodsOnOtherNetwork: Recreate these pods, which are not on the network of this node's mode cni ("none"): shop/stays`,
	}
	if got := said(); !slices.Equal(got, want) {
		t.Errorf("said\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	r.pods.events, r.node.events = nil, nil
	<-m.wake // the Node's
	for i := range 12 {
		see(fmt.Sprintf("p%02d", i), "winkube", true, false)
	}
	select {
	case <-m.wake:
	default:
		t.Error("the Manager was not woken")
	}
	see("stays", "winkube", false, false)
	m.places.report(m.State().Join)
	all := said()
	if got := all[len(all)-1]; len(all) != 13 || !strings.HasSuffix(got, "shop/p00, shop/p01, shop/p02, shop/p03, shop/p04, shop/p05, shop/p06, shop/p07, shop/p08, shop/p09 and 2 others") {
		t.Errorf("%d events, the last: %s", len(all), got)
	}
}

// If plugins map ports, the kubelet serves none.
func TestPluginsMapPorts(t *testing.T) {
	for _, maps := range []bool{true, false} {
		for _, platform := range []pod.Platform{onLinux, {OS: "windows"}} {
			r := newPlugged(t, Config{Platform: platform})
			m := r.Manager
			r.plugins.maps = maps
			ports := []pod.HostPort{{Port: 8081, Protocol: v1.ProtocolTCP, ContainerPort: 81}}
			o := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true, PID: 42, HostPorts: ports}}}
			if platform.OS == "windows" {
				o = pod.Observed{Containers: []pod.Container{{ID: "box", State: pod.Running, HostPorts: ports}}}
			}
			o = o.With(m.Attachments(webPod(), o))
			left := 0
			for _, s := range o.Sandboxes {
				left += len(s.HostPorts)
			}
			for _, c := range o.Containers {
				left += len(c.HostPorts)
			}
			if (left == 0) != maps {
				t.Errorf("%s, plugins map ports: %t; left: %d", platform.OS, maps, left)
			}
		}
	}
}
