package programs

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestThousandRoutes counts proxy.exe's calls of IP Helper for routes to 1,000 other nodes: it writes each once, and reads the tables only a few
// times.
func TestThousandRoutes(t *testing.T) {
	const others, reads = 1000, 12 // a list, a change, and the same again for two hints; the next hops at start and for each hint
	w, p := simulated(t, 20348)
	w.IPHelper.SetAdapter("Ethernet 9", true, []netip.Prefix{netip.MustParsePrefix("172.16.255.1/16")})
	var objects []runtime.Object
	for i := range others + 1 {
		name, address, pods := fmt.Sprintf("n%04d", i), fmt.Sprintf("172.16.%d.%d", i/250, i%250+1), fmt.Sprintf("10.%d.%d.0/24", 100+i/250, i%250)
		if i == others {
			name, address, pods = "win1", "172.16.255.1", "10.200.0.0/24"
		}
		objects = append(objects, &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:   v1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
			Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}}})
	}
	api := newAPI(t, objects...)
	stop := startToStop(t, p, nil, "proxy.exe", "--v=2", "--hostname-override=win1", "--master="+api.URL, "--bind-address=127.0.0.1",
		"--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	count := func(function string) int { return len(w.Log.Calls(function)) }
	var begin time.Time
	if err := w.Log.Wait(ctx, func() bool {
		n := count("CreateIpForwardEntry2")
		if n > 0 && begin.IsZero() {
			begin = time.Now()
		}
		return n >= others
	}); err != nil {
		t.Fatalf("%d routes were written, want %d", count("CreateIpForwardEntry2"), others)
	}
	took := time.Since(begin)
	stop()
	if n := count("CreateIpForwardEntry2"); n != others {
		t.Errorf("routes were written %d times, want %d", n, others)
	}
	if n := count("DeleteIpForwardEntry2"); n != 0 {
		t.Errorf("%d routes were deleted", n)
	}
	tables := w.IPHelper.Reads("GetIpForwardTable2")
	if tables == 0 || tables > reads {
		t.Errorf("the routing table was read %d times, want 1 to %d", tables, reads)
	}
	t.Logf("%d routes in %.1f s under Wine: %d calls that write one, %d that read the table, %d that read addresses", others, took.Seconds(), others, tables, w.IPHelper.Reads("GetUnicastIpAddressTable"))
}
