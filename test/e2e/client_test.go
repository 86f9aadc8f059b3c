package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestClientAddress: with externalTrafficPolicy Local the endpoint sees the client's address: another host's, or one of
// the node's if the node is the client.
func TestClientAddress(t *testing.T) {
	s := newSpace(t)
	near, far := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("web", far, "serve", "8080"))
	policy := v1.IPFamilyPolicyPreferDualStack
	service, err := client.CoreV1().Services(s.name).Create(s.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeNodePort, IPFamilyPolicy: &policy, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal,
			Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{{Port: 8080}}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.ready("web")
	node, err := client.CoreV1().Nodes().Get(s.Context(), near.Name, metav1.GetOptions{})
	s.must(err)
	other, err := client.CoreV1().Nodes().Get(s.Context(), far.Name, metav1.GetOptions{})
	s.must(err)
	for i, to := range internal(other) {
		url := "http://" + net.JoinHostPort(to, strconv.Itoa(int(service.Spec.Ports[0].NodePort))) + "/client-ip"
		want := internal(node)[i]
		s.eventually(time.Minute, "the pod sees "+want, func(ctx context.Context) error {
			out, err := ask(ctx, near, url)
			if err != nil {
				return err
			}
			from, err := netip.ParseAddrPort(strings.TrimSpace(out))
			if err == nil && from.Addr().String() != want {
				err = fmt.Errorf("it saw %s", from.Addr())
			}
			return err
		})
		if out, err := ask(t.Context(), far, url); err != nil {
			t.Errorf("the node itself: %v", err)
		} else {
			t.Logf("%s: host %s is seen as %s, the node itself as %s", url, near.Name, want, strings.TrimSpace(out))
		}
	}
}

func internal(node *v1.Node) (out []string) {
	for _, address := range node.Status.Addresses {
		if address.Type == v1.NodeInternalIP {
			out = append(out, address.Address)
		}
	}
	return out
}
