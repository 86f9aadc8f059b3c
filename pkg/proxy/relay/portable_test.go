package relay_test

import (
	"testing"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// The suite on the portable Plane, which every system has. Each test has its own name here, because some cannot pass on
// Wine.

func TestSuite(t *testing.T)              { relaytest.Suite(t, relaytest.Portable()) }
func TestHalfClose(t *testing.T)          { relaytest.HalfClose(t, relaytest.Portable()) }
func TestResetPassesThrough(t *testing.T) { relaytest.ResetPassesThrough(t, relaytest.Portable()) }
func TestPackets(t *testing.T)            { relaytest.Packets(t, relaytest.Portable()) }
func TestHeldUntilEndpointComes(t *testing.T) {
	relaytest.HeldUntilEndpointComes(t, relaytest.Portable())
}
func TestEstablishedSurvivesChanges(t *testing.T) {
	relaytest.EstablishedSurvivesChanges(t, relaytest.Portable())
}
func TestAffinity(t *testing.T)        { relaytest.Affinity(t, relaytest.Portable()) }
func TestNodePort(t *testing.T)        { relaytest.NodePort(t, relaytest.Portable()) }
func TestPasses(t *testing.T)          { relaytest.Passes(t, relaytest.Portable()) }
func TestAddresses(t *testing.T)       { relaytest.MadeLocal(t, relaytest.Portable()) }
func TestSCTPIsNamed(t *testing.T)     { relaytest.SCTPIsNamed(t, relaytest.Portable()) }
func TestChurn(t *testing.T)           { relaytest.Churn(t, relaytest.Portable()) }
func TestUDPSession(t *testing.T)      { relaytest.UDPSession(t, relaytest.Portable()) }
func TestUDPSessionsEnd(t *testing.T)  { relaytest.UDPSessionsEnd(t, relaytest.Portable()) }
func TestUDPOnLocalhost(t *testing.T)  { relaytest.UDPOnLocalhost(t, relaytest.Portable()) }
func TestNoLeak(t *testing.T)          { relaytest.NoLeak(t, relaytest.Portable()) }
func TestEndpointIsFront(t *testing.T) { relaytest.EndpointIsFront(t, relaytest.Portable()) }
func TestResume(t *testing.T)          { relaytest.Resume(t, relaytest.Portable()) }
func TestClientShare(t *testing.T)     { relaytest.ClientShare(t, relaytest.Portable()) }
func TestSessionsShared(t *testing.T)  { relaytest.SessionsShared(t, relaytest.Portable()) }
func TestManyConnections(t *testing.T) { relaytest.ManyConnections(t, relaytest.Portable()) }

func BenchmarkPortable(b *testing.B) { relaytest.Bench(b, relay.Goroutines) }
