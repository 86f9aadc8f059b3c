//go:build linux

package traffic

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/test/apiserver"
)

// newAPI returns an API server with one Service at addr with the ports of all loads, and count other Services with one
// port each. The only endpoint is serverAddr.
func newAPI(addr string, count int) (*apiserver.Server, error) {
	server, err := apiserver.New(apiserver.JSON)
	if err != nil {
		return nil, err
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "n"}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: serverAddr}}}}
	if err := server.Set(node); err != nil {
		return nil, err
	}
	if err := add(server, "bench", addr, requestPort, bulkPort, connectPort, packetPort); err != nil {
		return nil, err
	}
	for i := range count {
		if err := add(server, fmt.Sprintf("more-%d", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250), requestPort); err != nil {
			return nil, err
		}
	}
	return server, nil
}

// add creates a Service and its EndpointSlice.
func add(server *apiserver.Server, name, addr string, ports ...int) error {
	meta := metav1.ObjectMeta{Name: name, Namespace: "bench"}
	service := &v1.Service{ObjectMeta: meta,
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol}}}
	meta.Labels = map[string]string{discovery.LabelServiceName: name}
	slice := &discovery.EndpointSlice{ObjectMeta: meta,
		AddressType: discovery.AddressTypeIPv4,
		Endpoints:   []discovery.Endpoint{{Addresses: []string{serverAddr}, Conditions: discovery.EndpointConditions{Ready: ptr.To(true)}}}}
	for _, port := range ports {
		protocol := v1.ProtocolTCP
		if port == packetPort {
			protocol = v1.ProtocolUDP
		}
		portName := fmt.Sprintf("p%d", port)
		service.Spec.Ports = append(service.Spec.Ports, v1.ServicePort{Name: portName, Protocol: protocol, Port: int32(port), TargetPort: intstr.FromInt(port)})
		slice.Ports = append(slice.Ports, discovery.EndpointPort{Name: &portName, Protocol: &protocol, Port: ptr.To(int32(port))})
	}
	return server.Set(service, slice)
}

// serveAPI serves the Services in a namespace and returns the kubeconfig.
func (r *rig) serveAPI(ctx context.Context, namespace string, count int, port string) (string, error) {
	var listener net.Listener
	err := within(namespace, func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(serverAddr, port))
		return err
	})
	if err != nil {
		return "", err
	}
	api, err := newAPI(serviceIP, count)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: api, ReadHeaderTimeout: 10 * time.Second}
	r.servers = append(r.servers, server)
	go func() { _ = server.Serve(listener) }()
	path := filepath.Join(r.dir, namespace+"-"+port+".kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],
"clusters":[{"name":"c","cluster":{"server":"http://%s:%s"}}]}`, serverAddr, port)
	return path, os.WriteFile(path, []byte(text), 0o600)
}
