package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/test/lab"
)

// metalLBPool are the addresses that MetalLB gives to Services.
const metalLBPool = "172.30.0.96-172.30.0.97"

// metalLB is MetalLB in pods, in layer 2 mode.
type metalLB struct {
	*space
	front netip.Addr
}

// TestMetalLB: the real MetalLB gives a Service an address, and one of its speakers announces it by ARP. Beside the
// proxies no one else answers for the address, its other ports are closed, clients are served, and follow to the other
// node when the speaker ends. MetalLB comes from its module, so the first build takes minutes: WINKUBE_METALLB=1.
func TestMetalLB(t *testing.T) {
	if os.Getenv("WINKUBE_METALLB") == "" {
		t.Skip("set WINKUBE_METALLB=1 to build and run MetalLB")
	}
	m := &metalLB{space: newSpace(t)}
	m.must(cluster.LoadMetalLB(t.Context()))
	v := m.victims()
	for _, node := range cluster.Nodes {
		v.resolves("DNS from "+node.Name, node, lab.DNSAddress, "udp")
		pod := m.pod("web-"+node.Name, node, "serve", "8080")
		pod.Labels["app"] = "web"
		m.create(pod)
	}
	m.install()
	for _, node := range cluster.Nodes {
		m.ready("web-" + node.Name)
		m.ready("speaker-" + node.Name)
	}
	m.ready("controller")
	m.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"controller", "speaker-node1", "speaker-node2"} {
				t.Logf("%s:\n%s", name, m.logs(name))
			}
		}
	})
	for _, policy := range []v1.ServiceExternalTrafficPolicy{v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal} {
		t.Run(string(policy), func(t *testing.T) { (&metalLB{space: &space{T: t, name: m.name}}).announced(policy) })
	}
	v.rounds(5)
	v.unharmed()
}

// install applies MetalLB's kinds and rights, a pool, and its pods: a speaker on each node, one controller.
func (m *metalLB) install() {
	m.Helper()
	text, err := os.ReadFile("testdata/metallb.yaml")
	m.must(err)
	var kinds strings.Builder
	for _, k := range []struct{ kind, plural, version, served string }{
		{"BFDProfile", "bfdprofiles", "v1beta1", ""}, {"BGPAdvertisement", "bgpadvertisements", "v1beta1", ""},
		{"BGPPeer", "bgppeers", "v1beta2", "v1beta1"}, {"Community", "communities", "v1beta1", ""},
		{"IPAddressPool", "ipaddresspools", "v1beta1", ""}, {"L2Advertisement", "l2advertisements", "v1beta1", ""},
		{"ServiceBGPStatus", "servicebgpstatuses", "v1beta1", ""}, {"ServiceL2Status", "servicel2statuses", "v1beta1", ""},
	} {
		versions := customVersion(k.version, true)
		if k.served != "" {
			versions += customVersion(k.served, false)
		}
		fmt.Fprintf(&kinds, customKind, k.plural, strings.ToLower(k.kind), k.kind, versions)
	}
	dir := m.TempDir()
	apply := func(name, text string) {
		m.Helper()
		path := filepath.Join(dir, name)
		m.must(os.WriteFile(path, []byte(text), 0o644))
		m.Cleanup(func() {
			if _, err := cluster.Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", path); err != nil {
				m.Error(err)
			}
		})
		m.eventually(time.Minute, "kubectl apply of "+name, func(ctx context.Context) error {
			_, err := cluster.Kubectl(ctx, "apply", "-f", path)
			return err
		})
	}
	apply("kinds.yaml", kinds.String())
	rights, pool, found := strings.Cut(strings.NewReplacer("NAMESPACE", m.name, "POOL", metalLBPool).Replace(string(text)), "# pool\n")
	if !found {
		m.Fatal("testdata/metallb.yaml has no pool")
	}
	apply("rights.yaml", rights)
	apply("pool.yaml", pool)
	m.create(m.program("controller", cluster.Nodes[0], "--webhook-mode=disabled", "--disable-cert-rotation"))
	for _, node := range cluster.Nodes {
		m.create(m.speaker(node))
	}
}

const customKind = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.metallb.io}
spec:
  group: metallb.io
  names: {plural: %[1]s, singular: %[2]s, kind: %[3]s}
  scope: Namespaced
  versions:
%[4]s---
`

// customVersion returns a version of a kind whose fields the API server does not check.
func customVersion(name string, stored bool) string {
	return fmt.Sprintf("  - {name: %s, served: true, storage: %t, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n", name, stored)
}

// program returns a pod of one of MetalLB's programs.
func (m *metalLB) program(name string, node *lab.Host, args ...string) *v1.Pod {
	pod := m.pod(name, node, append([]string{"--namespace=" + m.name}, args...)...)
	pod.Spec.ServiceAccountName = "metallb"
	c := &pod.Spec.Containers[0]
	c.Image = lab.MetalLBImage(strings.Split(name, "-")[0])
	c.ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/metrics", Port: intstr.FromInt32(7472)}}}
	return pod
}

// speaker returns a node's speaker. They find each other as pods of one label (memberlist, without encryption).
func (m *metalLB) speaker(node *lab.Host) *v1.Pod {
	pod := m.program("speaker-"+node.Name, node, "--ml-labels=app=speaker")
	pod.Labels["app"], pod.Spec.HostNetwork = "speaker", true
	c := &pod.Spec.Containers[0]
	c.SecurityContext = &v1.SecurityContext{Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_RAW"}}}
	for name, field := range map[string]string{"METALLB_NODE_NAME": "spec.nodeName", "METALLB_POD_NAME": "metadata.name", "METALLB_HOST": "status.hostIP", "METALLB_ML_BIND_ADDR": "status.podIP"} {
		c.Env = append(c.Env, v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: field}}})
	}
	return pod
}

// announced plays one Service from its address to the end of the speaker that announces it.
func (m *metalLB) announced(policy v1.ServiceExternalTrafficPolicy) {
	made := m.claim(strings.ToLower(string(policy)), "web", []v1.ServicePort{tcp(80, 8080)}, func(spec *v1.ServiceSpec) {
		spec.Type, spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, policy
	})
	m.eventually(time.Minute, "an address for the Service", func(ctx context.Context) error {
		service, err := client.CoreV1().Services(m.name).Get(ctx, made.Name, metav1.GetOptions{})
		if err == nil && len(service.Status.LoadBalancer.Ingress) != 1 {
			err = fmt.Errorf("ingress %v", service.Status.LoadBalancer.Ingress)
		}
		if err == nil {
			m.front, err = netip.ParseAddr(service.Status.LoadBalancer.Ingress[0].IP)
		}
		return err
	})
	outside := cluster.Control
	m.Cleanup(func() {
		_, _ = outside.Exec(context.Background(), "ip", "neigh", "flush", "to", m.front.String(), "dev", "eth0")
	})
	by := m.announcer(outside, cluster.Nodes)
	m.served(policy, by)
	for _, host := range cluster.Hosts() {
		m.eventually(time.Minute, m.front.String()+" from "+host.Name, func(context.Context) error {
			return within(host, func() error {
				_, err := visit(m.front.String() + ":80")
				return err
			})
		})
	}
	for _, port := range []string{"8080", "10250", "22"} {
		conn, err := (net.Conn)(nil), error(nil)
		_ = within(outside, func() error {
			conn, err = net.DialTimeout("tcp", net.JoinHostPort(m.front.String(), port), time.Second)
			return nil
		})
		if err == nil {
			conn.Close()
			m.Errorf("port %s of %s is open; the Service has only port 80", port, m.front)
		}
	}
	m.must(client.CoreV1().Pods(m.name).Delete(m.Context(), "speaker-"+by.Name, metav1.DeleteOptions{}))
	others := slices.DeleteFunc(slices.Clone(cluster.Nodes), func(h *lab.Host) bool { return h == by })
	began := time.Now()
	next := m.announcer(outside, others)
	m.served(policy, next)
	m.Logf("%s: announced by %s, %.1f s after the end of its speaker by %s", m.front, by.Name, time.Since(began).Seconds(), next.Name)
	m.eventually(time.Minute, "the speaker gone", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(m.name).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=speaker-" + by.Name})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%s", pods.Items[0].Status.Phase)
		}
		return err
	})
	m.create(m.speaker(by))
	m.ready("speaker-" + by.Name)
}

// announcer waits until exactly one of nodes answers ARP for the front, and returns it. Speakers that do not know each
// other yet all answer; they look for each other once a minute.
func (m *metalLB) announcer(from *lab.Host, nodes []*lab.Host) (by *lab.Host) {
	m.Helper()
	m.eventually(2*time.Minute, "one node answers for "+m.front.String(), func(context.Context) error {
		var macs []string
		err := within(from, func() (err error) {
			macs, err = whoHas(m.front)
			return err
		})
		if err != nil || len(macs) != 1 {
			return fmt.Errorf("answers of %q, %v", macs, err)
		}
		for _, node := range nodes {
			if m.hardware(node) == macs[0] {
				by = node
				return nil
			}
		}
		return fmt.Errorf("%s answers, which is none of the nodes", macs[0])
	})
	return by
}

// whoHas asks by ARP on eth0 for an IPv4 address and returns the MAC addresses that answer within a second.
func whoHas(addr netip.Addr) ([]string, error) {
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, syscall.ETH_P_ARP))
	own, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, err
	}
	addresses, err := own.Addrs()
	if err != nil {
		return nil, err
	}
	mine, err := netip.ParsePrefix(addresses[0].String())
	if err != nil {
		return nil, err
	}
	socket, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return nil, err
	}
	defer syscall.Close(socket)
	if err := syscall.Bind(socket, &syscall.SockaddrLinklayer{Protocol: protocol, Ifindex: own.Index}); err != nil {
		return nil, err
	}
	frame := ethernetARP(arpRequest, own.HardwareAddr, mine.Addr(), bytes.Repeat([]byte{0xff}, 6), addr)
	if err := syscall.Sendto(socket, frame, 0, &syscall.SockaddrLinklayer{Protocol: protocol, Ifindex: own.Index, Halen: 6}); err != nil {
		return nil, err
	}
	macs, end := map[string]bool{}, time.Now().Add(time.Second)
	for left := time.Until(end); left > 0; left = time.Until(end) {
		patience := syscall.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := syscall.SetsockoptTimeval(socket, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience); err != nil {
			return nil, err
		}
		got := make([]byte, 1514)
		n, _, err := syscall.Recvfrom(socket, got, 0)
		if err != nil || n < 42 || binary.BigEndian.Uint16(got[20:]) != arpReply || !bytes.Equal(got[28:32], addr.AsSlice()) {
			continue
		}
		macs[net.HardwareAddr(got[22:28]).String()] = true
	}
	return slices.Sorted(maps.Keys(macs)), nil
}

// served visits the front several times from outside the cluster. With policy Local only the announcing node's pod
// answers.
func (m *metalLB) served(policy v1.ServiceExternalTrafficPolicy, by *lab.Host) {
	m.Helper()
	want := hello("web-")
	if policy == v1.ServiceExternalTrafficPolicyLocal {
		want = hello("web-" + by.Name)
	}
	m.eventually(time.Minute, "served through "+by.Name, func(context.Context) error {
		return within(cluster.Control, func() error {
			for range 5 {
				if got, err := visit(m.front.String() + ":80"); err != nil || !strings.HasPrefix(got, want) {
					return fmt.Errorf("it says %q, %v", got, err)
				}
			}
			return nil
		})
	})
}
