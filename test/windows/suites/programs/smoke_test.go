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

// TestKubeletRegisters starts kubelet.exe with the command line of the seeds' page, over Docker's own pipe, and waits for its Node to be Ready.
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
		"--eviction-hard=", "--image-gc-high-threshold=100") // the machine's disk is not the host's

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

// windowsEngine is Docker on that Windows, with nothing but a fake of Linux beneath.
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

// TestProxyServes starts proxy.exe with the command line of the seeds' page; a service whose address is loopback's answers through it.
func TestProxyServes(t *testing.T) {
	p := rig.Test(t, server2022)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }))
	t.Cleanup(backend.Close)
	target := netip.MustParseAddrPort(backend.Listener.Addr().String())
	service := &v1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: "127.77.0.1", ClusterIPs: []string{"127.77.0.1"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: 18080, Protocol: v1.ProtocolTCP}}}}
	slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{target.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(target.Port())), Protocol: ptr.To(v1.ProtocolTCP)}}}
	api := newAPI(t, service, slice, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1"}})

	start(t, p, []string{"INTERFACE_TO_ADD_SERVICE_IP=lo"}, "proxy.exe", "--v=3", "--proxy-mode=userspace", "--hostname-override=win1",
		"--master="+api.URL, "--bind-address=127.0.0.1", "--network-mode=upstream", "--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")

	if got := getSoon(t, "http://127.77.0.1:18080/"); got != "served" {
		t.Errorf("the service answered %q", got)
	}
}

// getSoon asks until a program listens, at most for a minute.
func getSoon(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
