package relaytest

import (
	"testing"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

// Suite runs the suite of all back ends.
func Suite(t *testing.T, subject Subject) {
	proxytest.Run(t, func(t *testing.T) (proxy.Backend, proxytest.Host) {
		h := NewHost(t, subject)
		return h.Relay, h
	})
}

// Run runs every test on a Plane.
func Run(t *testing.T, subject Subject) {
	for name, test := range map[string]func(*testing.T, Subject){
		"affinity": Affinity, "churn": Churn, "udp": UDPSession, "udp ends": UDPSessionsEnd, "udp shared": SessionsShared, "udp on localhost": UDPOnLocalhost, "SCTP": SCTPIsNamed,
		"many": ManyConnections,
	} {
		t.Run(name, func(t *testing.T) { test(t, subject) })
	}
	RunTCP(t, subject)
}

// RunTCP runs the tests that depend on how fronts listen.
func RunTCP(t *testing.T, subject Subject) {
	for name, test := range map[string]func(*testing.T, Subject){
		"suite": Suite, "half-close": HalfClose, "reset": ResetPassesThrough, "packets": Packets, "held": HeldUntilEndpointComes,
		"established": EstablishedSurvivesChanges, "node port": NodePort, "leak": NoLeak, "itself": EndpointIsFront, "resume": Resume,
		"addresses": MadeLocal, "passes": Passes, "share": ClientShare,
	} {
		t.Run(name, func(t *testing.T) { test(t, subject) })
	}
}
