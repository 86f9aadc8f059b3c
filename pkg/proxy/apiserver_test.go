package proxy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/winkube/winkube/pkg/proxy"
)

// TestAPIServers: changed addresses of the API server's Service and endpoints are reported, those of other Services are
// not.
func TestAPIServers(t *testing.T) {
	told := make(chan []netip.Addr, 10)
	r := newRigOf(t, func(c *proxy.LoopConfig) { c.APIServers = func(a []netip.Addr) { told <- a } })
	want := func(texts ...string) {
		t.Helper()
		var all []netip.Addr
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		if got := <-told; !slices.Equal(got, all) {
			t.Fatalf("told %v, want %v", got, all)
		}
	}
	service, slice := testService("kubernetes", "10.96.0.1"), testSlice("kubernetes", "10.1.0.10")
	service.Namespace, slice.Namespace = "default", "default"
	r.inbox.SetService(service)
	r.inbox.SetSlice(slice)
	r.run()
	close(r.synced)
	want("10.96.0.1", "10.1.0.10")
	r.inbox.SetService(testService("web", "10.96.0.2"))
	r.until("another", func() bool { return len(r.backend.Calls()) > 1 })
	slice = testSlice("kubernetes", "10.1.0.10", "10.1.0.20")
	slice.Namespace = "default"
	r.inbox.SetSlice(slice)
	want("10.96.0.1", "10.1.0.10", "10.1.0.20")
	if len(told) > 0 {
		t.Errorf("told more: %v", <-told)
	}
}
