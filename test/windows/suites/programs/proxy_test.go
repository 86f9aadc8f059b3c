package programs

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// simulated returns a Windows host with a simulated network.
func simulated(t *testing.T, build int) (*sim.World, *rig.Prefix) {
	t.Helper()
	p, w := rig.Test(t, build), sim.New(build, rig.HostAdapter(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(l)
	t.Cleanup(w.Close)
	if err := w.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	return w, p
}

// served returns a Service with one TCP port, and a slice for each endpoint.
func served(name, address string, port int32, targets ...string) []runtime.Object {
	objects := []runtime.Object{&v1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: port, Protocol: v1.ProtocolTCP}}}}}
	for i, text := range targets {
		target, slice := netip.MustParseAddrPort(text), fmt.Sprintf("%s-%d", name, i)
		objects = append(objects, &discoveryv1.EndpointSlice{
			TypeMeta:    metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
			ObjectMeta:  metav1.ObjectMeta{Name: slice, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{target.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(target.Port())), Protocol: ptr.To(v1.ProtocolTCP)}}})
	}
	return objects
}

// soon requires that all lines appear in the World's state within three minutes.
func soon(t *testing.T, w *sim.World, lines ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	missing := ""
	err := w.Log.Wait(ctx, func() bool {
		state := w.String()
		missing = ""
		for _, line := range lines {
			if !strings.Contains(state, line) {
				missing = line
			}
		}
		return missing == ""
	})
	if err != nil {
		t.Fatalf("%q does not come in:\n%s\n%v", missing, w, err)
	}
}

const bridge = `{"Name":"cbr0","Type":"L2Bridge","Ipams":[{"Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Routes":[{"NextHop":"10.244.1.2","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`

// TestProxyBackEnds runs proxy.exe with the Windows back ends, without a named interface. It checks what they set in Windows, what is relayed
// besides, and that --cleanup removes all of it.
func TestProxyBackEnds(t *testing.T) {
	kernelspace := []string{"--proxy-mode=kernelspace", "--network-name=cbr0"}
	for i, test := range []struct {
		build int
		args  []string
		want  string
	}{
		{14393, []string{"--userspace-backend=portproxy"}, "portproxy v4tov4 10.96.0.10:80 to 10.244.2.7:8080"},
		{20348, []string{"--userspace-backend=portproxy"}, "portproxy v4tov4 10.96.0.10:80 to 10.244.2.7:8080"},
		{17763, kernelspace, "load balancer 10.96.0.10 tcp 80 to 8080"},
		{20348, kernelspace, "load balancer 10.96.0.10 tcp 80 to 8080"},
		{26100, kernelspace, "load balancer 10.96.0.10 tcp 80 to 8080"},
	} {
		t.Run(fmt.Sprint(test.build, test.args[0]), func(t *testing.T) {
			t.Parallel()
			address := fmt.Sprintf("127.77.1.%d", i+1) // all tests share the machine's addresses
			w, p := simulated(t, test.build)
			if strings.Contains(test.args[0], "kernelspace") {
				if result, _, _ := w.HNS.Call("HcnCreateNetwork", []string{"00000000-0000-0000-0000-000000000000", bridge}); result != 0 {
					t.Fatalf("HRESULT %#x", uint32(result))
				}
			}
			before := w.String()
			objects := append(served("web", "10.96.0.10", 80, "10.244.2.7:8080"), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1"}})
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }))
			t.Cleanup(backend.Close)
			objects = append(objects, served("relayed", address, 18080, backend.Listener.Addr().String(), "127.0.0.1:1")...) // two endpoints, one of them dead
			api := newAPI(t, objects...)
			args := append([]string{"--v=3", "--hostname-override=win1", "--master=" + api.URL, "--bind-address=127.0.0.1", "--network-mode=upstream",
				"--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"}, test.args...)
			stop := startToStop(t, p, nil, "proxy.exe", args...)
			soon(t, w, test.want, `firewall "winkube kube-proxy" allow in`, "KubeProxySwitch")
			if got := getSoon(t, "http://"+address+":18080/"); got != "served" {
				t.Errorf("what Windows cannot do is relayed: %q", got)
			}
			stop()
			path := program(t, "proxy.exe")
			if out, err := p.Run(t.Context(), path, "--cleanup", "--hostname-override=win1", "--network-name=cbr0"); err != nil {
				t.Errorf("--cleanup: %v: %s", err, out)
			}
			if after := w.String(); after != before {
				t.Errorf("--cleanup leaves:\n%s\nbefore:\n%s", after, before)
			}
			if unknown := w.Log.Unknown(); len(unknown) > 0 {
				t.Errorf("asked, not simulated: %v", unknown)
			}
		})
	}
}

// TestKernelspaceOf2016: HNS of Server 2016 has nothing that a proxy could manage, and the proxy reports it.
func TestKernelspaceOf2016(t *testing.T) {
	t.Parallel()
	_, p := simulated(t, 14393)
	path := program(t, "proxy.exe")
	said, err := p.Finish(p.Command(t.Context(), path, "--master=127.0.0.1:1", "--hostname-override=win1", "--proxy-mode=kernelspace", "--network-name=cbr0"))
	if err == nil || !strings.Contains(said.Stderr, "build 14393") || !strings.Contains(said.Stderr, "--proxy-mode=userspace") {
		t.Errorf("%v: %s", err, said)
	}
}
