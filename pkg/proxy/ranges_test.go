package proxy_test

import (
	"net/netip"
	"slices"
	"testing"

	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/proxy"
)

// start runs the loop with a client's objects.
func (r *rig) start(client *clientsettest.Clientset) {
	r.t.Helper()
	nodes, err := proxy.NodeInformer(client, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.watch(client, nodes)
	r.run()
}

// TestServiceRanges: the ranges are reported before the first Sync, and whenever they change, each time with a full
// comparison. Invalid ranges are skipped.
func TestServiceRanges(t *testing.T) {
	r := newRig(t)
	cidr := func(name string, cidrs ...string) *networking.ServiceCIDR {
		return &networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networking.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	client := clientsettest.NewClientset(cidr("kubernetes", "10.96.0.0/12", "fd00:96::/112"), cidr("malformed", "10.0.0.0"), testService("web", "10.96.0.1"))
	r.start(client)
	r.told("10.96.0.0/12", "fd00:96::/112")
	r.until("first sync", func() bool { return slices.Equal(r.backend.Calls(), []string{"everything"}) })
	cidrs := client.ServiceCIDRs()
	if _, err := cidrs.Create(t.Context(), cidr("more", "10.20.0.0/16"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.told("10.20.0.0/16", "10.96.0.0/12", "fd00:96::/112")
	r.until("a whole sync", func() bool { return slices.Equal(r.backend.Calls(), []string{"everything", "everything"}) })
	if err := cidrs.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.told("10.20.0.0/16")
}

// told waits for ranges.
func (r *rig) told(texts ...string) {
	r.t.Helper()
	var want []netip.Prefix
	for _, text := range texts {
		want = append(want, netip.MustParsePrefix(text))
	}
	got := <-r.ranges
	slices.SortFunc(got, netip.Prefix.Compare)
	if !slices.Equal(got, want) {
		r.t.Fatalf("ranges are %v, want %v", got, want)
	}
}

// TestNoServiceRanges: a cluster that does not publish its ranges is served without them.
func TestNoServiceRanges(t *testing.T) {
	resource := networking.Resource("servicecidrs")
	for name, refusal := range map[string]error{"forbidden": apierrors.NewForbidden(resource, "", nil), "before 1.33": apierrors.NewNotFound(resource, "")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			client := clientsettest.NewClientset(testService("web", "10.96.0.1"))
			client.PrependReactor("*", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
			client.PrependWatchReactor("servicecidrs", clienttesting.DefaultWatchReactor(nil, refusal))
			r.start(client)
			r.until("served", func() bool { return r.backend.String() != "" })
			select {
			case got := <-r.ranges:
				t.Errorf("ranges are %v", got)
			default:
			}
		})
	}
}
