package join

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// ownBridge is the Linux device for l2bridge networks whose endpoints the kubelet creates: the Linux engine does not know them. The simulated IP
// Helper hides devices with such names.
const ownBridge = "br-own"

// firstSchema27 is the first build whose engine creates the endpoints of l2bridge networks, so that the Linux engine has them
// too (ADR 27).
const firstSchema27 = 20348

// mirrorGateway gives Linux the pods' gateway address while the simulated host has the gateway's endpoint.
func (m *member) mirrorGateway(name string, added bool, addresses []netip.Prefix) {
	if m.mirrored == "" || name != network.AdapterOf(m.mirrored) || len(addresses) == 0 {
		return
	}
	script := "ip address flush dev " + ownBridge + " 2>/dev/null || true"
	if added {
		script = fmt.Sprintf(bridgeScript, ownBridge, addresses[0])
	}
	if _, err := m.host.Exec(context.Background(), "sh", "-c", script); err != nil {
		m.Errorf("cannot mirror the pods' gateway: %v", err)
	}
}

// bridgeScript creates the device if it is missing, and sets its address.
const bridgeScript = `set -e
dev=%s
if ! ip link show $dev >/dev/null 2>&1; then
	ip link add $dev type bridge
	ip link set $dev up
	iptables -w -I FORWARD -i $dev -j ACCEPT
	iptables -w -I FORWARD -o $dev -j ACCEPT
fi
ip address replace %s dev $dev`

// mirrorEndpoint connects a Linux container as HCS did in HNS. Containers that share another's network are connected
// already.
func (m *member) mirrorEndpoint(container string, to hns.Connection) {
	if m.mirrored == "" || to.Network != "L2Bridge" || !to.Gateway.IsValid() {
		return
	}
	details, err := m.host.Engine().Inspect(m.Context(), container)
	if err != nil || details.State.Pid == 0 {
		return // the container has ended
	}
	if _, err := m.host.Exec(context.Background(), "sh", "-c", fmt.Sprintf(endpointScript, ownBridge, details.State.Pid, to.Address, to.Gateway)); err != nil {
		m.Logf("cannot mirror the endpoint %s of container %.12s, which may have ended: %v", to.Address, container, err)
	}
}

// endpointScript connects the network namespace of a process with a veth pair.
const endpointScript = `set -e
dev=%s pid=%d
if nsenter --net=/proc/$pid/ns/net ip link show eth0 >/dev/null 2>&1; then exit 0; fi
ip link add vethw$pid type veth peer name eth0 netns $pid
ip link set vethw$pid master $dev up
nsenter --net=/proc/$pid/ns/net sh -c "ip address add %s dev eth0 && ip link set eth0 up && ip route add default via %s"`
