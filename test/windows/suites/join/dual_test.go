package join

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/test/lab"
)

// familyPods are a pod on the Windows node, one on a Linux node, and a Service of both families for each.
const familyPods = `---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: ` + lab.SampleImage + `, imagePullPolicy: Never, args: [serve, "8080"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: linux, labels: {app: linux}}
spec:
  nodeName: LINUX
  terminationGracePeriodSeconds: 1
  containers: [{name: linux, image: ` + lab.SampleImage + `, imagePullPolicy: Never, args: [serve, "8080"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: linux}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: linux}, ports: [{port: 80, targetPort: 8080}]}
`

// TestDualStack lets a Windows Server be a node of a cluster with addresses of both families: DUAL_STACK=1. Docker on Windows has only IPv4 networks
// (moby/moby#48287), so its pods have IPv4 addresses, and the host serves both addresses of a Service.
func TestDualStack(t *testing.T) {
	if !cluster.DualStack {
		t.Skip("the cluster has only IPv4: DUAL_STACK=1 makes one with both families")
	}
	t.Parallel()
	host := <-free
	t.Cleanup(func() { free <- host })
	m := newMember(t, host, 20348)
	m.boot()
	m.join()
	m.unusedRange()
	m.namespace("dual")
	m.apply(strings.ReplaceAll(familyPods, "LINUX", cluster.Nodes[0].Name))
	m.until(90*time.Second, "the pod Ready", func(context.Context) error { return m.podsReady(1, 0) })
	pod, err := watched.Pods().Lister().Pods(m.space).Get("web")
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := netip.ParseAddr(pod.Status.PodIP); err != nil || !addr.Is4() || len(pod.Status.PodIPs) != 1 {
		t.Errorf("the pod has the addresses %v; want one of IPv4", pod.Status.PodIPs)
	}
	m.did("dual stack: a pod Ready, with IPv4", "ok")
	m.servesFamilies()
	if state := m.world.String(); !strings.Contains(state, "address fd00:") {
		t.Errorf("the simulators have no IPv6 address of a Service:\n%s", state)
	}
	m.kubelet.Stop()
	m.proxy.Stop()
	m.cleanup()
	if state := m.world.String(); strings.Contains(state, "fd00:") {
		t.Errorf("IPv6 addresses are left in\n%s", state)
	}
	m.did("dual stack: no IPv6 address left", "ok")
	if err := m.forget(t.Context()); err != nil {
		t.Error(err)
	}
}

// unusedRange wants the Node to have ranges of both families, and its Event about IPv6.
func (m *member) unusedRange() {
	m.Helper()
	node, err := watched.Nodes().Lister().Get(m.host.Name)
	if err != nil {
		m.Fatal(err)
	}
	if len(node.Spec.PodCIDRs) != 2 || !strings.Contains(node.Spec.PodCIDRs[1], ":") {
		m.Fatalf("the Node has the ranges %v; want IPv4 and IPv6", node.Spec.PodCIDRs)
	}
	m.until(time.Minute, "the Event PodCIDRUnused", func(context.Context) error {
		list, err := watched.Events().Lister().List(labels.Everything())
		for _, e := range list {
			if e.InvolvedObject.Name == m.host.Name && e.Reason == "PodCIDRUnused" && strings.Contains(e.Message, "none of "+node.Spec.PodCIDRs[1]) {
				return nil
			}
		}
		if err == nil {
			err = fmt.Errorf("it is none of %d Events", len(list))
		}
		return err
	})
	m.did("dual stack: Event PodCIDRUnused", "ok")
}

// servesFamilies wants both addresses of the Service of the Linux pod to answer on the host, and the IPv4 address of the Windows pod's there
// too. Its IPv6 address has no endpoint.
func (m *member) servesFamilies() {
	m.Helper()
	url := map[string]string{}
	for _, name := range []string{"web", "linux"} {
		service, err := watched.Services().Lister().Services(m.space).Get(name)
		if err != nil {
			m.Fatal(err)
		}
		url[name+" IPv4"], url[name+" IPv6"] = "http://"+service.Spec.ClusterIPs[0]+"/hostname", "http://["+service.Spec.ClusterIPs[1]+"]/hostname"
	}
	for _, one := range []struct {
		what string
		ok   func(context.Context) error
	}{
		{"linux, IPv4, on the host", func(ctx context.Context) error { return m.get(ctx, url["linux IPv4"], "linux") }},
		{"linux, IPv6, on the host", func(ctx context.Context) error { return m.get(ctx, url["linux IPv6"], "linux") }},
		{"web, IPv4, on the host", func(ctx context.Context) error { return m.get(ctx, url["web IPv4"], "web") }},
		{"linux, IPv4, in the Windows pod", func(ctx context.Context) error { return m.fromPod(ctx, url["linux IPv4"], "linux") }},
	} {
		m.served(30*time.Second, "the Service "+one.what, one.ok)
	}
	ctx, cancel := context.WithTimeout(m.Context(), 10*time.Second)
	defer cancel()
	if err := m.get(ctx, url["web IPv6"], "web"); err == nil {
		m.Error("the Service of a pod with IPv4 answers at its IPv6 address")
	}
	m.did("dual stack: Services of both families on the node", "ok")
}
