package proxy_test

import (
	"fmt"
	"net/netip"
	"os"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/proxy"
)

// Two Services claim 203.0.113.1:80: one through an external IP, the other through an address from a load balancer's
// controller. The latter has the better right. The former gets a Problem that says so, and the rest of it is served.
func ExampleBuild() {
	service := func(name, clusterIP string) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1.ServiceSpec{ClusterIP: clusterIP, Ports: []v1.ServicePort{{Name: "http", Port: 80}}}}
	}
	shop, web := service("shop", "10.96.0.10"), service("web", "10.96.0.20")
	shop.Spec.ExternalIPs = []string{"203.0.113.1"}
	web.Spec.Type = v1.ServiceTypeLoadBalancer
	web.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	slice := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-x7k2p", Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		Endpoints: []discovery.Endpoint{{Addresses: []string{"10.244.1.5"}, NodeName: ptr.To("node1")},
			{Addresses: []string{"10.244.2.7"}, NodeName: ptr.To("node2")}}}
	holders := proxy.Holders{ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}

	table, problems := proxy.BuildWithProblems([]*v1.Service{shop, web}, []*discovery.EndpointSlice{slice}, proxy.NodeInfo{Name: "node1"}, holders)
	if err := table.Fprint(os.Stdout); err != nil {
		fmt.Println(err)
	}
	for _, p := range problems {
		fmt.Println("left out:", p)
	}
	// Output:
	// SERVICE       PORT  KIND          PROTOCOL  FRONT           AFFINITY  SOURCES  BACKENDS
	// default/shop  http  ClusterIP     TCP       10.96.0.10:80   -         -        reject
	// default/web   http  ClusterIP     TCP       10.96.0.20:80   -         -        10.244.1.5:8080 local, 10.244.2.7:8080
	// default/web   http  LoadBalancer  TCP       203.0.113.1:80  -         -        10.244.1.5:8080 local, 10.244.2.7:8080
	// left out: default/shop: Service spec.externalIPs[0]: TCP 203.0.113.1:80 is a load balancer's address of Service default/web, which takes precedence: cluster IPs come before load balancers' addresses, and those before external IPs: want another address or port
}
