//go:build linux

package traffic

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// api is as much of an API server as a service proxy asks of it: lists of objects that never change, by resource.
type api struct {
	objects map[string][]any
}

var listKinds = map[string]string{"services": "Service v1", "nodes": "Node v1", "endpointslices": "EndpointSlice discovery.k8s.io/v1",
	"servicecidrs": "ServiceCIDR networking.k8s.io/v1"}

// newAPI has one Service at addr with the ports of every load, and count others with a port each, all with the endpoint serverAddr.
func newAPI(addr string, count int) *api {
	a := &api{objects: map[string][]any{}}
	a.objects["nodes"] = []any{&v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "n"},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: serverAddr}}}}}
	a.add("bench", addr, requestPort, bulkPort, connectPort, packetPort)
	for i := range count {
		a.add(fmt.Sprintf("more-%d", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250), requestPort)
	}
	return a
}

func (a *api) add(name, addr string, ports ...int) {
	meta := metav1.ObjectMeta{Name: name, Namespace: "bench"}
	service := &v1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: meta,
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol}}}
	meta.Labels = map[string]string{discovery.LabelServiceName: name}
	slice := &discovery.EndpointSlice{TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"}, ObjectMeta: meta,
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
	a.objects["services"] = append(a.objects["services"], service)
	a.objects["endpointslices"] = append(a.objects["endpointslices"], slice)
}

// ServeHTTP answers lists, watches (with what a list would say when asked for, KEP-3157, and then nothing) and single Nodes.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource := parts[len(parts)-1]
	kind, version, isList := strings.Cut(listKinds[resource], " ")
	encode := json.NewEncoder(w).Encode
	switch {
	case r.URL.Path == "/version":
		_ = encode(map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
	case r.Method != http.MethodGet: // events
		w.WriteHeader(http.StatusCreated)
		_ = encode(map[string]any{"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": map[string]string{"name": "e"}})
	case resource == nodeName:
		_ = encode(a.objects["nodes"][0])
	case !isList:
		w.WriteHeader(http.StatusNotFound)
		_ = encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound,
			Code: http.StatusNotFound, Message: r.URL.Path + " not found"})
	case r.URL.Query().Get("watch") != "":
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			for _, object := range a.objects[resource] {
				_ = encode(map[string]any{"type": "ADDED", "object": object})
			}
			_ = encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{
				"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}})
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		items := a.objects[resource]
		if items == nil {
			items = []any{}
		}
		_ = encode(map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": map[string]string{"resourceVersion": "1"}, "items": items})
	}
}
