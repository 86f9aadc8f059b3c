package programs

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/engine"
)

const server2022 = 20348

// TestKubeletRegisters starts kubelet.exe with the command line from the seeds' page, on Docker's default pipe, and waits until its Node is
// Ready.
func TestKubeletRegisters(t *testing.T) {
	p := rig.Test(t, server2022)
	windows := windowsEngine(t, p)
	stop, err := p.Relay(t.Context(), rig.DockerPipe, windows.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	api := newAPI(t)

	start(t, p, []string{"CONTAINER_NETWORK=nat"}, "kubelet.exe", "--hostname-override=win1", "--pod-infra-container-image=pause", "--resolv-conf=",
		"--api_servers="+api.URL, `--root-dir=C:\kubelet`, "--address=127.0.0.1", "--port=0", "--healthz-port=0",
		"--eviction-hard=", "--image-gc-high-threshold=100") // the machine's disk is not the simulated host's

	node := api.Wait(t, "/api/v1/nodes/win1", func(o runtime.Object) bool {
		for _, condition := range o.(*v1.Node).Status.Conditions {
			if condition.Type == v1.NodeReady && condition.Status == v1.ConditionTrue {
				return true
			}
		}
		return false
	}).(*v1.Node)
	for label, want := range map[string]string{"kubernetes.io/os": "windows", "beta.kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "win1"} {
		if got := node.Labels[label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	if node.Status.NodeInfo.OperatingSystem != "windows" || node.Status.NodeInfo.KubeletVersion != "v1.36.3" {
		t.Errorf("nodeInfo is %+v", node.Status.NodeInfo)
	}
}

// windowsEngine serves Docker of that Windows, on top of a fake Linux engine.
func windowsEngine(t *testing.T, p *rig.Prefix) *httptest.Server {
	t.Helper()
	linux := httptest.NewServer(dockertest.New(dockertest.Options{}))
	t.Cleanup(linux.Close)
	e, err := engine.New(engine.Options{Build: p.Build, Drive: p.Path(`C:\`), Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", linux.Listener.Addr().String())
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(e)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(func() {
		if faults := e.Faults(); len(faults) > 0 {
			t.Errorf("what a client of Windows should not ask: %q", faults)
		}
	})
	return server
}

// TestProxyServes starts proxy.exe with the command line from the seeds' page. A service with a loopback address answers through it.
func TestProxyServes(t *testing.T) {
	p := rig.Test(t, server2022)
	service, slices := answering(t, v1.IPFamilyPolicySingleStack, "127.77.0.1")
	serveWith(t, p, service, slices...)
	if got := getSoon(t, "http://127.77.0.1:18080/"); got != "tcp4" {
		t.Errorf("the service answered %q", got)
	}
}

// TestProxyServesBothFamilies: a service that requests both families is served on both of its addresses, each by endpoints of its family.
func TestProxyServesBothFamilies(t *testing.T) {
	p := rig.Test(t, server2022)
	if probe, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	} else if err := probe.Close(); err != nil {
		t.Fatal(err)
	}
	service, slices := answering(t, v1.IPFamilyPolicyRequireDualStack, "127.77.0.2", "::1")
	serveWith(t, p, service, slices...)
	for address, want := range map[string]string{"127.77.0.2": "tcp4", "[::1]": "tcp6"} {
		if got := getSoon(t, "http://"+address+":18080/"); got != want {
			t.Errorf("the service answered %q at %s, want %q", got, address, want)
		}
	}
}

// answering returns a service on addresses of this machine, with an endpoint per family that answers with the family's network.
func answering(t *testing.T, policy v1.IPFamilyPolicy, addresses ...string) (*v1.Service, []runtime.Object) {
	t.Helper()
	service := &v1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: addresses[0], ClusterIPs: addresses, IPFamilyPolicy: &policy,
			Ports: []v1.ServicePort{{Port: 18080, Protocol: v1.ProtocolTCP}}}}
	var slices []runtime.Object
	for _, address := range addresses {
		family, kind, network, local := v1.IPv4Protocol, discoveryv1.AddressTypeIPv4, "tcp4", "127.0.0.1:0"
		if netip.MustParseAddr(address).Is6() {
			family, kind, network, local = v1.IPv6Protocol, discoveryv1.AddressTypeIPv6, "tcp6", "[::1]:0"
		}
		service.Spec.IPFamilies = append(service.Spec.IPFamilies, family)
		listener, err := net.Listen(network, local)
		if err != nil {
			t.Fatal(err)
		}
		backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, network) }))
		_ = backend.Listener.Close()
		backend.Listener = listener
		backend.Start()
		t.Cleanup(backend.Close)
		target := netip.MustParseAddrPort(listener.Addr().String())
		slices = append(slices, &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
			ObjectMeta:  metav1.ObjectMeta{Name: "web-" + network, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: kind,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{target.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(target.Port())), Protocol: ptr.To(v1.ProtocolTCP)}}})
	}
	return service, slices
}

// serveWith starts proxy.exe with the command line from the seeds' page.
func serveWith(t *testing.T, p *rig.Prefix, service *v1.Service, slices ...runtime.Object) {
	t.Helper()
	api := newAPI(t, append(slices, service, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1"}})...)
	start(t, p, []string{"INTERFACE_TO_ADD_SERVICE_IP=lo"}, "proxy.exe", "--v=3", "--proxy-mode=userspace", "--hostname-override=win1",
		"--master="+api.URL, "--bind-address=127.0.0.1", "--network-mode=upstream", "--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")
}

// getSoon sends requests until a program listens, for at most three minutes.
func getSoon(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			t.Fatalf("%s did not answer: %v", url, err)
		}
	}
}
