package relay

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/proxy"
)

// TestSourcePortsWarning: users hear once in a while that connections to an endpoint use up this host's source ports.
func TestSourcePortsWarning(t *testing.T) {
	h := newTestHost(t)
	clock := clocktesting.NewFakeClock(time.Now())
	h.relay.cfg.Clock = clock
	heard := make(chan string, 10)
	h.relay.cfg.Warn = func(service proxy.ServiceName, reason, message string) {
		heard <- service.String() + " " + reason + ": " + message
	}
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP), h.Endpoint(1, v1.ProtocolTCP)))
	f := h.relay.fronts[frontKey{v1.ProtocolTCP, h.Front(0)}]
	f.crowded(1599, 1000) // of 2 x 1000
	f.crowded(5000, 0)    // not known
	f.crowded(1600, 1000)
	if got := <-heard; !strings.HasPrefix(got, "a/x SourcePortsNearlyUsedUp: 1600 connections are open to 2 endpoints") {
		t.Errorf("heard %q", got)
	}
	f.crowded(1700, 1000)
	f.exhausted()
	clock.Step(warnEvery)
	f.exhausted()
	if got := <-heard; !strings.Contains(got, "no source port left") {
		t.Errorf("heard %q", got)
	}
	select {
	case got := <-heard:
		t.Errorf("heard twice within %v: %q", warnEvery, got)
	default:
	}
}
