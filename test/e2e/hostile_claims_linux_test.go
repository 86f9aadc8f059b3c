package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/test/lab"
)

// servedBy returns an error unless the server's certificate is for want.
func servedBy(addr, want string) error {
	conn, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the test checks who answers
	if err := client.HandshakeContext(context.Background()); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if got := client.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
		return fmt.Errorf("%s answers, want %s", got, want)
	}
	return nil
}

// TestHostileDNS: a Service in another namespace claims the addresses of kube-dns and of the API server's Service.
func TestHostileDNS(t *testing.T) {
	s := newSpace(t)
	s.thief(cluster.Nodes[1])
	v := s.victims()
	for _, node := range cluster.Nodes {
		v.resolves("DNS by UDP from "+node.Name, node, lab.DNSAddress, "udp")
		v.resolves("DNS by TCP from "+node.Name, node, lab.DNSAddress, "tcp")
		v.ask("API server's Service from "+node.Name, node, func() error { return servedBy(lab.ServiceIP+":443", "kube-apiserver") })
	}
	v.rounds(5)
	s.claim("aaa", "thief", []v1.ServicePort{udp(53, 8080), tcp(53, 8080), tcp(443, 8080)}, func(spec *v1.ServiceSpec) {
		spec.ExternalIPs = []string{lab.DNSAddress, lab.ServiceIP}
	})
	v.rounds(30)
	s.warned(s.name, "Service", "aaa", "externalIPs", lab.DNSAddress)
	s.warned(s.name, "Service", "aaa", "externalIPs", lab.ServiceIP)
	v.rounds(20)
	v.unharmed()
	for _, victim := range [][2]string{{"kube-system", "kube-dns"}, {"default", "kubernetes"}} {
		texts, err := warnings(t.Context(), victim[0], "Service", victim[1])
		s.must(err)
		for _, text := range texts {
			if strings.Contains(text, s.name) || strings.Contains(text, "aaa") {
				t.Errorf("the victim %s was warned: %s", victim[1], text)
			}
		}
	}
}

// TestHostileGateway: a Service claims the address of the nodes' gateway and that of the API server.
func TestHostileGateway(t *testing.T) {
	s := newSpace(t)
	gateway := s.outsider(netip.MustParseAddr("172.30.0.99"), 80, 81)
	for _, node := range cluster.Nodes {
		_, err := node.Exec(t.Context(), "ip", "route", "add", "default", "via", gateway.Addr.String())
		s.must(err)
		t.Cleanup(func() {
			_, _ = node.Exec(context.Background(), "ip", "route", "del", "default", "via", gateway.Addr.String())
		})
	}
	s.thief(cluster.Nodes[1])
	v := s.victims()
	for _, node := range cluster.Nodes {
		v.ask("gateway from "+node.Name, node, func() error { return says(gateway.Addr.String()+":80", hello("outsider")) })
		v.ask("gateway's other port from "+node.Name, node, func() error { return says(gateway.Addr.String()+":81", hello("outsider")) })
		v.ask("API server from "+node.Name, node, func() error { return servedBy(cluster.Control.Addr.String()+":6443", "kube-apiserver") })
	}
	v.rounds(5)
	s.claim("gateway", "thief", []v1.ServicePort{tcp(80, 8080)}, func(spec *v1.ServiceSpec) { spec.ExternalIPs = []string{gateway.Addr.String()} })
	s.claim("apiserver", "thief", []v1.ServicePort{tcp(6443, 8080)}, func(spec *v1.ServiceSpec) { spec.ExternalIPs = []string{cluster.Control.Addr.String()} })
	v.rounds(10)
	s.warned(s.name, "Service", "gateway", "externalIPs", gateway.Addr.String())
	s.warned(s.name, "Service", "apiserver", "externalIPs", cluster.Control.Addr.String())
	v.rounds(20)
	v.unharmed()
}

// TestHostileAddress: a Service may have an external address that belongs to a host outside the cluster. It only takes
// over the Service's own ports: other ports still lead to that host, and no node answers ARP for it on the link.
func TestHostileAddress(t *testing.T) {
	s := newSpace(t)
	o := s.outsider(netip.MustParseAddr("172.30.0.98"), 80, 81)
	near := cluster.Nodes[0]
	s.thief(cluster.Nodes[1])
	s.create(s.pod("client", near, "sleep"))
	s.ready("client")
	v := s.victims()
	for _, host := range cluster.Hosts() {
		v.ask("other port from "+host.Name, host, func() error { return says(o.Addr.String()+":81", hello("outsider")) })
	}
	v.ask("the address from a host without our proxy", cluster.Control, func() error { return says(o.Addr.String()+":80", hello("outsider")) })
	v.rounds(5)
	s.claim("web", "thief", []v1.ServicePort{tcp(80, 8080)}, func(spec *v1.ServiceSpec) { spec.ExternalIPs = []string{o.Addr.String()} })
	for _, node := range cluster.Nodes {
		s.eventually(time.Minute, "the Service from "+node.Name, func(context.Context) error {
			return within(node, func() error { return says(o.Addr.String()+":80", hello("thief")) })
		})
	}
	for _, host := range cluster.Hosts() {
		if mac := s.neighbour(host, o.Addr); mac != o.mac {
			t.Errorf("%s asked the link for %s and %s answered, want %s", host.Name, o.Addr, mac, o.mac)
		}
	}
	fromPod := func(port string) string {
		out, err := cluster.Kubectl(t.Context(), "exec", "-n", s.name, "client", "--", "/sample", "get", "http://"+o.Addr.String()+":"+port+"/")
		if err != nil {
			t.Errorf("a pod asks port %s: %v", port, err)
		}
		return strings.TrimSpace(out)
	}
	if got := fromPod("80"); got != hello("thief") {
		t.Errorf("a pod asks the Service: %q", got)
	}
	v.rounds(20)
	v.unharmed()
	// A load balancer that announces the address by ARP directs it to a node: here an entry in a host's neighbour table
	// does.
	_, err := cluster.Control.Exec(t.Context(), "ip", "neigh", "replace", o.Addr.String(), "lladdr", s.hardware(near), "dev", "eth0", "nud", "permanent")
	s.must(err)
	defer func() {
		_, _ = cluster.Control.Exec(context.Background(), "ip", "neigh", "del", o.Addr.String(), "dev", "eth0")
	}()
	if err := within(cluster.Control, func() error { return says(o.Addr.String()+":80", hello("thief")) }); err != nil {
		t.Errorf("where the address is announced by ARP for %s: %v", near.Name, err)
	}
}

// nodeClient returns a client with the credentials of a node's kubelet.
func (s *space) nodeClient(node *lab.Host) kubernetes.Interface {
	s.Helper()
	admin, own := s.kubeconfig(cluster.Kubeconfig()), s.kubeconfig(node.PKI("kubelet.kubeconfig"))
	tlsConfig := own.TLSClientConfig
	tlsConfig.CAData, tlsConfig.CAFile = admin.CAData, admin.CAFile
	c, err := kubernetes.NewForConfig(&rest.Config{Host: admin.Host, TLSClientConfig: tlsConfig})
	s.must(err)
	return c
}

// TestHostileNode: a node claims twice a second that addresses of Services are its own.
func TestHostileNode(t *testing.T) {
	s := newSpace(t)
	near, liar := cluster.Nodes[0], cluster.Nodes[1]
	const external, balancer = "198.51.100.80", "198.51.100.81"
	s.create(s.pod("web", near, "serve", "8080"))
	s.ready("web")
	service := s.claim("web", "web", []v1.ServicePort{tcp(80, 8080)}, func(spec *v1.ServiceSpec) {
		spec.Type, spec.ExternalIPs = v1.ServiceTypeLoadBalancer, []string{external}
	})
	service.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: balancer}}
	_, err := client.CoreV1().Services(s.name).UpdateStatus(t.Context(), service, metav1.UpdateOptions{})
	s.must(err)
	fronts := []string{service.Spec.ClusterIP, external, balancer}
	for _, addr := range fronts {
		s.eventually(time.Minute, addr+" served", func(context.Context) error {
			return within(near, func() error { return says(addr+":80", hello("web")) })
		})
	}
	v := s.victims()
	for _, addr := range fronts {
		v.ask(addr, near, func() error { return says(addr+":80", hello("web")) })
	}
	v.resolves("DNS", near, lab.DNSAddress, "udp")
	v.ask("API server's Service", near, func() error { return servedBy(lab.ServiceIP+":443", "kube-apiserver") })
	v.rounds(5)

	own := s.node(liar.Name).Status.Addresses
	api := s.nodeClient(liar)
	say := func(lies ...string) {
		addresses := append([]v1.NodeAddress{}, own...)
		for _, lie := range lies {
			addresses = append(addresses, v1.NodeAddress{Type: v1.NodeExternalIP, Address: lie})
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": addresses}})
		s.must(err)
		_, err = api.CoreV1().Nodes().Patch(context.Background(), liar.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		s.must(err)
	}
	t.Cleanup(func() { say() }) // its kubelet would, at its next status update
	before, err := warnings(t.Context(), "", "Node", liar.Name)
	s.must(err)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for round := range 12 {
		if round%2 == 0 {
			say(append(fronts, lab.DNSAddress, lab.ServiceIP)...)
		} else {
			say()
		}
		<-tick.C
	}
	say(fronts...)
	v.rounds(10)
	s.warned("", "Node", liar.Name, external)
	v.unharmed()
	after, err := warnings(t.Context(), "", "Node", liar.Name)
	s.must(err)
	if more := len(after) - len(before); more > 12 {
		t.Errorf("twelve lies made %d warnings: %q", more, after)
	}
}

// TestHostilePodRange: a kubelet creates its own Node with pod ranges of another node.
func TestHostilePodRange(t *testing.T) {
	s := newSpace(t)
	o := s.outsider(netip.MustParseAddr("172.30.0.97"), 80)
	near, far := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("web", far, "serve", "8080"))
	pod := s.ready("web")
	address := s.service("web", 8080)
	s.eventually(time.Minute, "served", func(context.Context) error {
		return within(near, func() error { return says(address+":80", hello("web")) })
	})
	v := s.victims()
	v.ask("a host", near, func() error { return says(o.Addr.String()+":80", hello("outsider")) })
	v.ask("a pod", near, func() error { return says(pod.Status.PodIP+":8080", hello("web")) })
	v.ask("a Service", near, func() error { return says(address+":80", hello("web")) })
	v.rounds(5)
	config := s.kubeconfig(cluster.Kubeconfig())
	taken := s.node(far.Name).Spec.PodCIDR
	for name, ranges := range map[string][]string{"liar-host": {o.Addr.String() + "/32"}, "liar-services": {"10.96.0.0/24"}, "liar-pods": {taken}} {
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"}}
		api, err := kubernetes.NewForConfig(config)
		s.must(err)
		t.Cleanup(func() {
			if err := client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			for _, r := range ranges { // the lab's own routes on the control plane's host
				if r != taken {
					_, _ = cluster.Control.Exec(context.Background(), "ip", "route", "del", r)
				}
			}
		})
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges, Unschedulable: true}}
		_, err = api.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		s.must(err)
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: "172.30.0.66"}, {Type: v1.NodeHostName, Address: name}}}})
		s.must(err)
		_, err = api.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		s.must(err)
	}
	v.rounds(20)
	s.warned("", "Node", "liar-host", o.Addr.String())
	s.warned("", "Node", "liar-services", "10.96.0.0/24")
	s.warned("", "Node", "liar-pods", taken)
	v.rounds(20)
	v.unharmed()
	for _, to := range []string{o.Addr.String(), "10.96.0.200"} {
		out, err := near.Exec(t.Context(), "ip", "route", "get", to)
		if strings.Contains(out, "172.30.0.66") {
			t.Errorf("%s is led to the liar: %s (%v)", to, out, err)
		}
	}
}

// TestHostileHostPort: a pod requests a hostPort at the address of a Service.
func TestHostileHostPort(t *testing.T) {
	s := newSpace(t)
	near := cluster.Nodes[0]
	s.create(s.pod("web", cluster.Nodes[1], "serve", "8080"))
	s.ready("web")
	address := s.service("web", 8080)
	s.eventually(time.Minute, "served", func(context.Context) error {
		return within(near, func() error { return says(address+":80", hello("web")) })
	})
	v := s.victims()
	v.ask("the Service", near, func() error { return says(address+":80", hello("web")) })
	v.rounds(5)
	thief := s.pod("thief", near, "serve", "8080")
	thief.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 80, HostIP: address}}
	s.create(thief)
	s.warned(s.name, "Pod", "thief", "hostIP", address)
	v.rounds(20)
	v.unharmed()
}

// TestHostileKubeletPort: a Service claims the kubelet's own port at the node's address while the kubelet is killed
// twenty times.
func TestHostileKubeletPort(t *testing.T) {
	s := newSpace(t)
	near := cluster.Nodes[0]
	s.thief(cluster.Nodes[1])
	addr := net.JoinHostPort(near.Addr.String(), "10250")
	v := s.victims()
	// A killed kubelet does not listen, which is harmless here; another server in its place is not.
	for _, host := range []*lab.Host{cluster.Control, near} {
		v.ask("kubelet's port from "+host.Name, host, func() error {
			got, err := visit(addr)
			if err == nil && !strings.Contains(got, "HTTPS server") {
				return fmt.Errorf("it says %q", got)
			}
			return nil
		})
	}
	s.claim("kubelet", "thief", []v1.ServicePort{tcp(10250, 8080)}, func(spec *v1.ServiceSpec) { spec.ExternalIPs = []string{near.Addr.String()} })
	s.warned(s.name, "Service", "kubelet", "externalIPs", near.Addr.String(), "10250")
	kubelet := near.Process("kubelet")
	for range 20 {
		s.must(kubelet.Kill9(t.Context()))
		s.must(kubelet.Start(t.Context()))
		v.rounds(2)
		s.eventually(60*time.Second, "the kubelet listens again", func(context.Context) error {
			return within(near, func() error { return servedBy(addr, near.Name) })
		})
	}
	v.unharmed()
	s.nodeReady(near.Name, true, 60*time.Second)
}
