// Package doctor finds faults in this host's pod network, and says how to repair each (`kubelet network doctor`).
//
//	engine, interfaces, routes, packet filter, services --Examine--> Symptoms --Diagnose--> []Finding
//
// Examine only reads. Diagnose is pure.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/firewalld"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/portblocks"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Symptoms are the facts about a host's network. The caller sets the fields before Surroundings, Examine reads the rest.
type Symptoms struct {
	Config    network.Config
	State     network.State // as planned
	Elevated  bool
	EngineErr error
	Networks  []pod.EngineNetwork
	Plugins   string // mode CNI: the network's name and file
	PluginErr error  // mode CNI: why there is no network
	NoRule    bool   // our Windows Firewall rule is not wanted (--windows-firewall=false)
	network.Surroundings
	Unread []string // what could not be read, and why
	Linux
	Windows
}

// Linux has the facts that exist only on Linux.
type Linux struct {
	Forwarding map[string]bool // "ipv4", "ipv6": the sysctl
	Saved      iptables.Saved
	FilterErr  error // why iptables could not be read
	Firewalld  firewalld.State
}

// Windows has the facts that exist only on Windows.
type Windows struct {
	Stopped   []string         // services that should run but do not
	Ports     portblocks.Ports // the dynamic TCP ports; Excluded are those that Windows reserves
	Listeners []Listener       // by protocol and port
	Admitted  bool             // Windows Firewall has our rule for the kubelet
	// HNS' network on which the kubelet creates the pods' endpoints (network.Config.OwnNetwork), or why it cannot be read.
	Own    hns.Network
	OwnErr error
}

// Finding is the result of one check.
type Finding struct {
	Fault bool
	What  string
	Fix   string // a command, or who repairs it; "": nothing to do. Without Fault it is advice
}

// String formats the finding as `kubelet network doctor` prints it.
func (f Finding) String() string {
	switch {
	case !f.Fault && f.Fix == "":
		return "ok     " + f.What + "\n"
	case !f.Fault:
		return "advice " + f.What + "\n       fix: " + f.Fix + "\n"
	}
	return "FAULT  " + f.What + "\n       fix: " + f.Fix + "\n"
}

func good(format string, args ...any) Finding { return Finding{What: fmt.Sprintf(format, args...)} }

func fault(fix, format string, args ...any) Finding {
	return Finding{Fault: true, What: fmt.Sprintf(format, args...), Fix: fix}
}

// Diagnose checks a host and returns good and bad findings. It is pure.
func Diagnose(s Symptoms) []Finding {
	var out []Finding
	checks := []func(Symptoms) []Finding{elevation, adapterName, engineNetworks, gatewayAddresses, ranges}
	if s.Config.Platform.OS == "windows" {
		checks = append(checks, windowsServices, windowsPorts, windowsListeners, windowsForwarding, serviceAddresses, windowsFirewall)
	} else {
		checks = append(checks, forwarding, packetFilter, firewalldZones, tunnels)
	}
	for _, check := range append(checks, mtu, routes) {
		out = append(out, check(s)...)
	}
	for _, u := range s.Unread {
		out = append(out, fault("run this as administrator (root), or check it manually", "cannot read %s", u))
	}
	return out
}

func elevation(s Symptoms) []Finding {
	if s.Elevated {
		return []Finding{good("this runs with the rights to change the network")}
	}
	return []Finding{fault("run kubelet, proxy and this as administrator (root)", "this runs without the rights to change the network")}
}

// adapterName checks that the adapter of --interface exists.
func adapterName(s Symptoms) []Finding {
	name := s.Config.Adapter
	if name == "" || s.Named(name) != nil || len(s.Links) == 0 {
		return nil
	}
	var names []string
	for _, l := range s.Links {
		names = append(names, strconv.Quote(l.Name))
	}
	return []Finding{fault("give --interface one of "+strings.Join(names, ", "), "this host has no interface %q", name)}
}

func engineNetworks(s Symptoms) []Finding {
	restart := "systemctl start docker"
	if s.Config.Platform.OS == "windows" {
		restart = "Start-Service docker"
	}
	if s.EngineErr != nil {
		return []Finding{fault(restart, "the engine does not answer: %v", s.EngineErr)}
	}
	if s.Config.Mode == network.CNI {
		if s.PluginErr != nil {
			return []Finding{fault("install or configure the network's CNI plugins there", "%v", s.PluginErr)}
		}
		return []Finding{good("there is a CNI network: %s", s.Plugins)}
	}
	if o := s.State.Overlay; o != nil {
		return []Finding{ownNetwork(s, o.Pods())}
	}
	if n := s.State.Links; n != nil {
		if s.Named(n.Bridge) == nil {
			return []Finding{fault("start the kubelet, which makes it", "this host has no bridge %s for pods", n.Bridge)}
		}
		return []Finding{good("the kubelet makes pods' interfaces on %s", n.Bridge)}
	}
	if b := s.State.Bridge; b != nil && s.State.Network == nil {
		return []Finding{ownNetwork(s, b.Pods())}
	}
	i := slices.IndexFunc(s.Networks, func(n pod.EngineNetwork) bool { return n.Name == s.State.Join })
	switch want := s.State.Network; {
	case s.State.Join == "":
		return []Finding{fault("kubectl get node -o wide; the controller manager needs --allocate-node-cidrs, or give --pod-cidr", "%s", s.State.Ready.Message)}
	case i < 0 && want == nil:
		return []Finding{fault("docker network create "+s.State.Join, "the engine has no network %q, which CONTAINER_NETWORK names", s.State.Join)}
	case i < 0:
		return []Finding{fault("start the kubelet, which makes it", "the engine has no network %q yet", s.State.Join)}
	case want == nil:
		return []Finding{good("the engine has the network %q", s.State.Join)}
	default:
		return []Finding{sameNetwork(s.Networks[i], *want)}
	}
}

// ownNetwork compares HNS' network with the plan.
func ownNetwork(s Symptoms, want hns.PodNetwork) Finding {
	kind, hint := "l2bridge", ""
	if want.Provider.IsValid() {
		kind, hint = "overlay", fmt.Sprintf("; firewalls must allow UDP %d from other nodes", vxlan.Port)
	}
	switch {
	case errors.Is(s.OwnErr, hns.ErrNotFound):
		return fault("start the kubelet, which makes it", "HNS has no network %q yet", want.Name)
	case s.OwnErr != nil:
		return fault("Start-Service hns", "cannot ask HNS for the network %q: %v", want.Name, s.OwnErr)
	case s.Own.Overlay != want.Provider.IsValid() || s.Own.Subnet != want.Subnet:
		return fault("drain this node, then the kubelet recreates it", "HNS' network %q has %s, the node's pod CIDR is %s", want.Name, s.Own.Subnet, want.Subnet)
	}
	return good("HNS has the %s network %q, %s%s", kind, want.Name, want.Subnet, hint)
}

// sameNetwork compares the engine's network with the plan.
func sameNetwork(have, want pod.EngineNetwork) Finding {
	remove := "drain this node, then: docker network rm " + want.Name
	switch {
	case have.Driver != want.Driver:
		return fault(remove, "the engine's network %q has driver %s instead of %s", have.Name, have.Driver, want.Driver)
	case !network.SameSubnets(have.Subnets, want.Subnets):
		return fault(remove, "the engine's network %q has %s, the node's pod CIDR is %s", have.Name, network.Join(have.Subnets), network.Join(want.Subnets))
	}
	for _, k := range slices.Sorted(maps.Keys(want.Options)) {
		if have.Options[k] != want.Options[k] {
			return fault(remove, "the engine's network %q has option %s=%q instead of %q", have.Name, k, have.Options[k], want.Options[k])
		}
	}
	return good("the engine's network %q is as planned, %s", have.Name, network.Join(have.Subnets))
}

func gatewayAddresses(s Symptoms) (out []Finding) {
	for _, g := range s.State.Gateways {
		fix := fmt.Sprintf("start the kubelet, or: ip addr add %s dev %s", g.Address, g.Interface)
		if s.Config.Platform.OS == "windows" {
			fix = fmt.Sprintf("start the kubelet, or: netsh interface ipv4 set address %q static %s %s", g.Interface, g.Address.Addr(), maskOf(g.Address))
		}
		switch l := s.Named(g.Interface); {
		case l == nil:
			out = append(out, fault("start the kubelet, which makes it", "this host has no interface %q", g.Interface))
		case !slices.Contains(l.Addrs, g.Address):
			out = append(out, fault(fix, "interface %q lacks the pods' gateway address %s", g.Interface, g.Address))
		default:
			out = append(out, good("the pods' gateway %s is on %q", g.Address, g.Interface))
		}
	}
	for _, a := range s.Config.NodeIPs {
		if s.With(a) == nil {
			out = append(out, fault("give --node-ip one of this host's addresses", "no interface has the node's address %s", a))
		}
	}
	return out
}

func maskOf(p netip.Prefix) string {
	b := [4]byte{}
	for i := range p.Bits() {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b).String()
}

// ranges looks for conflicts in the pods' ranges: foreign addresses, networks and routes.
func ranges(s Symptoms) (out []Finding) {
	for _, c := range s.State.Ranges() {
		overlaps := network.Overlaps(s.State, c, s.Networks, s.Surroundings, s.Config.Platform)
		for _, o := range overlaps {
			out = append(out, Finding{Fault: true, What: o.What, Fix: o.Remedy})
		}
		if len(overlaps) == 0 {
			out = append(out, good("no other address or route overlaps the node's pod CIDR %s", c))
		}
	}
	return out
}

func forwarding(s Symptoms) (out []Finding) {
	for _, r := range s.State.Rules {
		family, key := "ipv4", "net.ipv4.ip_forward"
		if r.PodCIDR.Addr().Is6() {
			family, key = "ipv6", "net.ipv6.conf.all.forwarding"
		}
		if s.Forwarding[family] {
			out = append(out, good("the kernel forwards %s", family))
			continue
		}
		out = append(out, fault("start the kubelet, or: sysctl -w "+key+"=1", "the kernel does not forward %s", family))
	}
	return out
}

func packetFilter(s Symptoms) (out []Finding) {
	if len(s.State.Rules) == 0 {
		return nil
	}
	if s.FilterErr != nil {
		return []Finding{fault("apt-get install iptables, or the equivalent of your distribution", "the packet filter cannot be read: %v", s.FilterErr)}
	}
	for _, d := range iptables.Compare(s.State.Rules, s.Saved) {
		switch {
		case d.Dropped:
			out = append(out, fault("start the kubelet, which opens it again", "%s drops packets between pods and other nodes: the policy of FORWARD is DROP, as Docker sets it, and %s is missing or changed", d.Tool, d.Chain))
		case d.Differs:
			out = append(out, fault("start the kubelet, which writes them again", "%s: the rules in %s are missing or changed", d.Tool, d.Chain))
		default:
			out = append(out, good("%s has the rules of %s", d.Tool, d.Chain))
		}
	}
	return out
}

// firewalldZones checks that firewalld forwards to pods. It rejects what other zones send to them, also what iptables accepts.
func firewalldZones(s Symptoms) (out []Finding) {
	if !s.Firewalld.Runs || s.Config.Mode == network.External || s.Config.Mode == network.CNI {
		return nil
	}
	bridge := s.Config.PodBridge()
	if bridge != "" && s.Firewalld.Bridge == "" {
		out = append(out, fault("start the kubelet", "firewalld has the pods' bridge %s in no zone, and rejects what pods send", bridge))
	}
	if bridge == "" && s.Firewalld.Docker {
		return append(out, good("firewalld forwards to Docker's bridges"))
	}
	for _, r := range s.Config.NonMasquerade {
		if zone := s.Firewalld.Sources[r]; zone != "" {
			out = append(out, good("firewalld has the pods' range %s in zone %s", r, zone))
			continue
		}
		out = append(out, fault(fmt.Sprintf("firewall-cmd --permanent --zone=%s --add-source=%s && firewall-cmd --reload", firewalld.Zone, r),
			"firewalld rejects what pods of other nodes send: it has their range %s in no zone", r))
	}
	return out
}

func tunnels(s Symptoms) (out []Finding) {
	for _, d := range s.State.Devices {
		l := s.Named(d.Name)
		switch {
		case l == nil:
			out = append(out, fault("start the kubelet; if that fails: modprobe vxlan", "this host has no tunnel device %s", d.Name))
		case !l.Tunnel:
			out = append(out, fault("start the kubelet, which recreates it", "%s is no VXLAN device with VNI %d and UDP port %d", d.Name, vxlan.VNI, vxlan.Port))
		case !l.Up || !slices.Contains(l.Addrs, d.Address):
			out = append(out, fault("start the kubelet", "the tunnel device %s is down or lacks its address %s", d.Name, d.Address))
		default:
			out = append(out, good("the tunnel device %s is up; firewalls must allow UDP %d from other nodes", d.Name, vxlan.Port))
		}
		if up := s.With(d.Local); up != nil && up.Strict {
			out = append(out, fault(fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", up.Name),
				"%s drops packets from other nodes' pods to this host, because the route back goes through the tunnel (rp_filter is 1)", up.Name))
		}
	}
	return out
}

func mtu(s Symptoms) []Finding {
	if s.State.Network == nil && s.State.Bridge == nil && s.State.Links == nil || len(s.Config.NodeIPs) == 0 || len(s.State.Gateways) == 0 {
		return nil
	}
	up, pods := s.With(s.Config.NodeIPs[0]), s.Named(s.State.Gateways[0].Interface)
	if up == nil || pods == nil {
		return nil
	}
	limit := up.MTU
	for _, d := range s.State.Devices {
		limit = min(limit, up.MTU-vxlan.Overhead(d.Local))
	}
	sent, cure := pods.MTU, "" // a bridge has the smallest MTU of its ports
	switch {
	case s.State.Links != nil:
		sent, cure = largestPort(s.Links, s.State.Links.MTU), "drain this node: new pods get interfaces that fit"
	case s.State.Network == nil:
		cure = fmt.Sprintf("drain this node, then: Get-HnsNetwork | ? Name -eq %s | Remove-HnsNetwork; the kubelet recreates it", s.State.Bridge.Name)
	default:
		cure = "drain this node, then: docker network rm " + s.State.Join + "; the kubelet recreates it"
	}
	if sent > limit {
		return []Finding{fault(cure, "pods send packets of %d bytes; the path to other nodes carries %d", sent, limit)}
	}
	return []Finding{good("pods send packets of %d bytes; the path to other nodes carries %d", sent, limit)}
}

// largestPort is the largest MTU of pods' interfaces that the kubelet made; planned if there are none.
func largestPort(links []network.Link, planned int) int {
	largest := 0
	for _, l := range links {
		if podlink.IsPort(l.Name) {
			largest = max(largest, l.MTU)
		}
	}
	return cmp.Or(largest, planned)
}

// routes looks for the routes that the proxy writes.
func routes(s Symptoms) []Finding {
	if s.Config.Mode != network.HostGateway && s.Config.Mode != network.Overlay {
		return nil
	}
	n, kind, none := 0, "routes", "there is no route"
	if s.State.Overlay != nil {
		n, kind, none = len(s.Own.Remote), "remote subnets of the overlay", "the overlay has no remote subnet, and so no route"
	}
	for _, r := range s.Routes {
		if r.Ours {
			n++
		}
	}
	if n == 0 {
		return []Finding{fault("start the proxy with --network-mode="+string(s.Config.Mode)+" (one node alone needs no route)", "%s to another node's pods", none)}
	}
	return []Finding{good("%d %s lead to other nodes' pods", n, kind)}
}

func windowsServices(s Symptoms) (out []Finding) {
	for _, name := range s.Stopped {
		out = append(out, fault("Start-Service "+name, "the service %s does not run", name))
	}
	if n := s.State.Network; n != nil && n.Driver == string(network.Transparent) {
		out = append(out, good("driver transparent takes no policies; a virtual machine needs MAC address spoofing allowed by its host (Set-VMNetworkAdapter -MacAddressSpoofing On), which some clouds refuse: use l2bridge there"))
	}
	return out
}

// kubernetesPorts are what kubelet and proxy listen on by default.
var kubernetesPorts = []int{10248, 10249, 10250, 10256}

func windowsPorts(s Symptoms) (out []Finding) {
	for _, e := range s.Ports.Excluded {
		for _, port := range kubernetesPorts {
			if port >= e[0] && port <= e[1] {
				out = append(out, fault(fmt.Sprintf("netsh interface ipv4 delete excludedportrange protocol=tcp startport=%d numberofports=%d, or restart the service winnat", e[0], e[1]-e[0]+1),
					"Windows reserves TCP ports %d to %d, including %d", e[0], e[1], port))
			}
		}
	}
	free, total := s.Ports.Free(), s.Ports.Total()
	switch {
	case total == 0: // not read
	case free <= portblocks.Kept:
		out = append(out, fault("start the proxy with --enable-dsr where it runs in kernelspace mode, or: netsh int ipv4 set dynamicport tcp start=33000 num=32536",
			"of %d blocks of %d dynamic TCP ports %d are free: HNS reserves one for each load balancer without direct server return", total, portblocks.Size, free))
	default:
		out = append(out, good("%d of %d blocks of %d dynamic TCP ports are free", free, total, portblocks.Size))
	}
	return out
}

// windowsFirewall checks only our own rule, not equivalent rules of others.
func windowsFirewall(s Symptoms) []Finding {
	switch {
	case s.NoRule:
		return nil
	case s.Admitted:
		return []Finding{good("Windows Firewall has the rule %q", network.FirewallRule)}
	}
	return []Finding{fault("start the kubelet, which makes it (the service mpssvc must run), or give --windows-firewall=false and allow TCP 10250 yourself",
		"Windows Firewall has no rule %q: other hosts may not reach the kubelet", network.FirewallRule)}
}

func windowsForwarding(s Symptoms) (out []Finding) {
	names := []string{}
	for _, g := range s.State.Gateways {
		names = append(names, g.Interface)
	}
	for _, a := range s.Config.NodeIPs {
		if l := s.With(a); l != nil && s.State.Overlay == nil { // the router of HNS forwards tunnel traffic
			names = append(names, l.Name)
		}
	}
	for _, name := range names {
		if l := s.Named(name); l != nil && !l.Forwarding {
			out = append(out, fault(fmt.Sprintf("netsh interface ipv4 set interface %q forwarding=enabled", name), "%q does not forward packets", name))
		}
	}
	return out
}

// serviceAddresses checks the interfaces that hold service addresses: with the strong host model, answers leave only by them.
func serviceAddresses(s Symptoms) (out []Finding) {
	for _, l := range s.Links {
		switch {
		case l.Services == 0:
		case l.Forwarding || l.WeakSend:
			out = append(out, good("answers from the %d service addresses on %q may leave by other interfaces", l.Services, l.Name))
		default:
			out = append(out, fault(fmt.Sprintf("start the proxy, or: netsh interface ipv4 set interface %q forwarding=enabled weakhostsend=enabled", l.Name),
				"%q holds %d service addresses, but has forwarding and weak host send disabled: pods get no replies", l.Name, l.Services))
		}
	}
	return out
}
