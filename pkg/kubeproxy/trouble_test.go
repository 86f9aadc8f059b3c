package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestTrouble: whatever is wrong with other Services, each gets one Event that names the field and what is wrong, and
// the good one is served throughout.
func TestTrouble(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }))
	t.Cleanup(backend.Close)
	target := netip.MustParseAddrPort(backend.Listener.Addr().String())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	takenPort := int32(taken.Addr().(*net.TCPAddr).Port)
	port := int32(free(t).Port())
	service := func(name, ip string, change func(*v1.Service)) *v1.Service {
		s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: port}}}}
		if change != nil {
			change(s)
		}
		return s
	}
	slice := func(name string, change func(*discovery.EndpointSlice)) *discovery.EndpointSlice {
		s := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Namespace: "default", Labels: map[string]string{discovery.LabelServiceName: name}},
			AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: []string{target.Addr().String()}}},
			Ports: []discovery.EndpointPort{{Port: ptr.To(int32(target.Port()))}}}
		if change != nil {
			change(s)
		}
		return s
	}
	broken := netip.MustParseAddr("192.0.2.80")
	addresses := relaytest.NewAddresses(netip.MustParseAddr("127.0.0.1"))
	addresses.Break(broken, &relay.AddressError{Addr: broken, Err: errors.New("no such device")})
	client := clientsettest.NewClientset(
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "127.77.78.85"}}}},
		service("good", "127.77.78.80", nil), slice("good", nil),
		service("node-port-taken", "127.77.78.81", func(s *v1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, takenPort }), slice("node-port-taken", nil),
		service("port-out-of-range", "127.77.78.82", func(s *v1.Service) { s.Spec.Ports[0].Port = 70000 }), slice("port-out-of-range", nil),
		service("wrong-family", "127.77.78.83", nil), slice("wrong-family", func(s *discovery.EndpointSlice) { s.Endpoints[0].Addresses[0] = "fd00::1" }),
		service("malformed", "127.77.78.84", nil), slice("malformed", func(s *discovery.EndpointSlice) { s.Endpoints[0].Addresses = nil; s.Ports[0].Port = nil }),
		service("address-of-the-host", "127.77.78.85", nil), slice("address-of-the-host", nil),
		service("address-refused", broken.String(), nil), slice("address-refused", nil))
	events := record.NewFakeRecorder(100)
	events.IncludeObject = true
	metrics := free(t)
	cfg := Config{Node: proxy.NodeInfo{Name: "n1"}, Metrics: metrics}
	serving := relay.New(relay.Goroutines, relay.Config{Addresses: addresses, Clock: clock.RealClock{}})
	t.Cleanup(serving.Close)
	p, err := New(cfg, Parts{Client: client, Base: NewBase(cfg.Node, clock.RealClock{}), Backend: serving, Routes: noRoutes{make(chan bool, 1)}, Facts: noFacts{}, Events: events, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); <-done }()

	want := map[string]string{
		"a node port in use":   fmt.Sprintf("cannot serve default/node-port-taken at NodePort TCP 0.0.0.0:%d: ", takenPort),
		"a port out of range":  "Service spec.ports[0].port: 70000 must be from 1 to 65535",
		"another family":       "EndpointSlice wrong-family-1 endpoints[0].addresses[0]: fd00::1 is not of the slice's family",
		"an endpoint without":  "EndpointSlice malformed-1 endpoints[0].addresses: is empty",
		"a slice without port": "EndpointSlice malformed-1 ports[0].port: 0 must be from 1 to 65535",
		"the host's own":       "Service spec.clusterIPs: 127.77.78.85 is an address of this node",
		"refused by the host":  "cannot serve default/address-refused at ClusterIP",
	}
	patience := time.After(time.Minute)
	for len(want) > 0 {
		select {
		case event := <-events.Events:
			for what, text := range want {
				if strings.HasPrefix(event, "Warning") && strings.Contains(event, text) {
					delete(want, what)
				}
			}
			if strings.Contains(event, "default/good") || strings.Contains(event, "\n") {
				t.Errorf("event %q", event)
			}
		case <-patience:
			t.Fatalf("no event of %v", want)
		}
	}
	for _, name := range []string{"127.77.78.80", "127.77.78.81", "127.77.78.85"} {
		url := fmt.Sprintf("http://%s:%d/", name, port)
		eventually(t, url, func() bool { _, body, _ := get(url); return body == "served" })
	}
	eventually(t, "metric", func() bool { // for the port in use and the refused address
		_, body, _ := get("http://" + metrics.String() + "/metrics")
		return strings.Contains(body, "\nkubeproxy_services_failing 2\n")
	})
	http.DefaultClient.CloseIdleConnections()
}
