package app

import (
	"context"
	"net/netip"
	"runtime"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/connect"
	"github.com/winkube/winkube/pkg/proxy/packets"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/proxy/relay/epoll"
	"github.com/winkube/winkube/pkg/proxy/relay/tuning"
)

// newSystem returns an empty system.
func newSystem() system { return system{} }

// loops returns the number of loops of the relay's plane: one for each processor that this program may use, before tune
// gives it more.
func loops() int { return epoll.Loops(runtime.GOMAXPROCS(0)) }

// newPlane returns the plane that carries the relay's data.
func newPlane() relay.NewPlane { return epoll.New(loops()) }

// connectKernel returns the kernel's part of deciding when clients in a cgroup connect.
func connectKernel(cgroup string) connect.Kernel { return connect.NewKernel(cgroup) }

// removeConnect removes connectKernel's BPF programs and maps.
func removeConnect(cgroup string) error { return connect.NewKernel(cgroup).Remove() }

// iptables-restore waits up to 5 s for other writers. A hung program delays Services for iptablesPatience, once in
// iptablesPause.
const (
	iptablesPatience = 10 * time.Second
	iptablesPause    = 30 * time.Second
)

// newPackets returns the back end for SCTP, which the relay cannot serve.
func newPackets(addresses relay.Addresses, nodePorts []netip.Prefix) proxy.Backend {
	return packets.New(packets.Config{Run: command.Patient(command.New(), iptablesPatience, iptablesPause), Host: packets.NewHost(), Addresses: addresses, NodePorts: nodePorts})
}

// removePackets removes the rules of newPackets.
func removePackets(ctx context.Context) error {
	return packets.New(packets.Config{Run: command.Patient(command.New(), iptablesPatience, iptablesPause), Host: packets.NewHost()}).Remove(ctx)
}

// tune changes the settings of this program and its host that the plane needs, and logs each of them. tracked is the least number of
// entries of connection tracking; 0: as the host has it.
func tune(tracked int) {
	changes, err := tuning.Apply(loops(), tracked)
	for _, c := range changes {
		klog.InfoS("Changed a setting for the relay", "setting", c.Name, "before", c.Before, "now", c.After)
	}
	if err != nil {
		klog.ErrorS(err, "Cannot change all kernel settings for the relay; serving Services without them")
	}
}

// untune restores the host's settings that tune changed in this or a previous run.
func untune() error { return tuning.Restore() }

// ownAddresses returns the addresses of a dummy interface, which is created with the first address.
func ownAddresses(context.Context) (relay.Addresses, error) { return addresses.New("") }

// removeOwn removes that interface and its routes and rules.
func removeOwn(ctx context.Context) error {
	own, err := addresses.New("")
	if err != nil {
		return err
	}
	return holdNothing(ctx, own)
}
