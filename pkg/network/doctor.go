package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// routeProtocol marks the proxy's routes (Protocol in package routes).
const routeProtocol = 157

// Symptoms is what the doctor reads of a host. Nothing in it was changed for the reading.
type Symptoms struct {
	Config    Config
	State     State // what should be
	Elevated  bool
	EngineErr error
	Networks  []pod.EngineNetwork
	Plugins   string // mode CNI: the network's name and file
	PluginErr error  // mode CNI: why there is none
	Surroundings
	// Linux
	Forwarding map[string]bool // "ipv4", "ipv6": the sysctl
	Saved      map[string]string
	FilterErr  error // iptables could not be asked
	// Windows
	Stopped  []string // services that should run and do not
	Excluded [][2]int // TCP ports that Windows keeps to itself: first and last
	Admitted bool     // Windows Firewall has a rule of ours for the kubelet
	NoRule   bool     // it is not to have one (--windows-firewall=false)
	Unread   []string // what could not be read, and why
	// Windows, mode Overlay: HNS' network, or why there is none to read
	Overlay    hns.Network
	OverlayErr error
}

// Surroundings are the host's interfaces and routes.
type Surroundings struct {
	Links  []Link
	Routes []HostRoute
}

// Link is one interface of the host.
type Link struct {
	Name       string
	Up         bool
	MTU        int
	Addrs      []netip.Prefix
	Strict     bool // Linux: drops packets whose way back leads elsewhere (rp_filter 1)
	Forwarding bool // Windows
	Tunnel     bool // Linux: VXLAN with our number and port
}

// HostRoute is one route of the main table.
type HostRoute struct {
	Dst  netip.Prefix
	Via  netip.Addr // invalid: directly connected
	Link string
	Ours bool // the proxy wrote it
}

// Finding is one thing that was looked at.
type Finding struct {
	Fault bool
	What  string
	Mend  string // a command, or who does it; "" when there is nothing to do
}

// String is the finding as `kubelet network doctor` prints it.
func (f Finding) String() string {
	if !f.Fault {
		return "ok     " + f.What + "\n"
	}
	return "FAULT  " + f.What + "\n       mend: " + f.Mend + "\n"
}

func good(format string, args ...any) Finding { return Finding{What: fmt.Sprintf(format, args...)} }

func fault(mend, format string, args ...any) Finding {
	return Finding{Fault: true, What: fmt.Sprintf(format, args...), Mend: mend}
}

// Diagnose says what is right and wrong on a host. It is pure.
func Diagnose(s Symptoms) []Finding {
	var out []Finding
	checks := []func(Symptoms) []Finding{elevation, adapterName, engineNetworks, gatewayAddresses, ranges}
	if s.Config.Platform.OS == "windows" {
		checks = append(checks, windowsServices, windowsPorts, windowsForwarding, windowsFirewall)
	} else {
		checks = append(checks, forwarding, packetFilter, tunnels)
	}
	for _, check := range append(checks, mtu, ways) {
		out = append(out, check(s)...)
	}
	for _, u := range s.Unread {
		out = append(out, fault("run this as administrator (root), or look yourself", "cannot read %s", u))
	}
	return out
}

func elevation(s Symptoms) []Finding {
	if s.Elevated {
		return []Finding{good("this runs with the rights to change the network")}
	}
	return []Finding{fault("run kubelet, proxy and this as administrator (root)", "this runs without the rights to change the network")}
}

// adapterName looks for the adapter that --interface names.
func adapterName(s Symptoms) []Finding {
	name := s.Config.Adapter
	if name == "" || s.link(name) != nil || len(s.Links) == 0 {
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
	if s.Config.Mode == CNI {
		if s.PluginErr != nil {
			return []Finding{fault("install or configure the network's CNI plugins there", "%v", s.PluginErr)}
		}
		return []Finding{good("there is a CNI network: %s", s.Plugins)}
	}
	if s.State.Overlay != nil {
		return []Finding{overlayOf(s, *s.State.Overlay)}
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

// overlayOf compares what HNS has with what is planned.
func overlayOf(s Symptoms, want hns.Overlay) Finding {
	switch {
	case errors.Is(s.OverlayErr, hns.ErrNotFound):
		return fault("start the kubelet, which makes it", "HNS has no network %q yet", want.Name)
	case s.OverlayErr != nil:
		return fault("Start-Service hns", "it is not known whether HNS has the network %q: %v", want.Name, s.OverlayErr)
	case !s.Overlay.Overlay || s.Overlay.Subnet != want.Subnet:
		return fault("drain this node, then the kubelet makes it anew", "HNS' network %q has %s, the node's pod CIDR is %s", want.Name, s.Overlay.Subnet, want.Subnet)
	}
	return good("HNS has the overlay network %q, %s; UDP %d must be let in from the other nodes", want.Name, want.Subnet, vxlan.Port)
}

// sameNetwork compares what the engine has with what is planned.
func sameNetwork(have, want pod.EngineNetwork) Finding {
	remove := "drain this node, then: docker network rm " + want.Name
	switch {
	case have.Driver != want.Driver:
		return fault(remove, "the engine's network %q has driver %s, wanted is %s", have.Name, have.Driver, want.Driver)
	case !sameSubnets(have.Subnets, want.Subnets):
		return fault(remove, "the engine's network %q has %s, the node's pod CIDR is %s", have.Name, join(have.Subnets), join(want.Subnets))
	}
	for _, k := range sortedKeys(want.Options) {
		if have.Options[k] != want.Options[k] {
			return fault(remove, "the engine's network %q has option %s=%q, wanted is %q", have.Name, k, have.Options[k], want.Options[k])
		}
	}
	return good("the engine's network %q is as planned, %s", have.Name, join(have.Subnets))
}

func (s Surroundings) link(name string) *Link {
	for i := range s.Links {
		if s.Links[i].Name == name {
			return &s.Links[i]
		}
	}
	return nil
}

// linkOf finds the interface that has an address.
func (s Surroundings) linkOf(a netip.Addr) *Link {
	for i := range s.Links {
		if slices.ContainsFunc(s.Links[i].Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return &s.Links[i]
		}
	}
	return nil
}

// Adapter is the name of the interface with the node's first address; "": none has it.
func (s Surroundings) Adapter(nodeIPs []netip.Addr) string {
	if len(nodeIPs) > 0 {
		if l := s.linkOf(nodeIPs[0]); l != nil {
			return l.Name
		}
	}
	return ""
}

// MTU is that of the interface with the node's first address, in bytes; 0: not known.
func (s Surroundings) MTU(nodeIPs []netip.Addr) int {
	if len(nodeIPs) > 0 {
		if l := s.linkOf(nodeIPs[0]); l != nil {
			return l.MTU
		}
	}
	return 0
}

func gatewayAddresses(s Symptoms) (out []Finding) {
	for _, g := range s.State.Gateways {
		mend := fmt.Sprintf("start the kubelet, or: ip addr add %s dev %s", g.Address, g.Interface)
		if s.Config.Platform.OS == "windows" {
			mend = fmt.Sprintf("start the kubelet, or: netsh interface ipv4 set address %q static %s %s", g.Interface, g.Address.Addr(), maskOf(g.Address))
		}
		switch l := s.link(g.Interface); {
		case l == nil:
			out = append(out, fault("start the kubelet, which has the engine make it", "this host has no interface %q", g.Interface))
		case !slices.Contains(l.Addrs, g.Address):
			out = append(out, fault(mend, "interface %q lacks the pods' gateway address %s", g.Interface, g.Address))
		default:
			out = append(out, good("the pods' gateway %s is on %q", g.Address, g.Interface))
		}
	}
	for _, a := range s.Config.NodeIPs {
		if s.linkOf(a) == nil {
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

// ranges looks for what else lies in the pods' ranges: addresses, networks and routes of others.
func ranges(s Symptoms) (out []Finding) {
	if s.State.Network == nil || len(s.State.Gateways) == 0 { // with l2bridge HNS has routes of its own
		return nil
	}
	for _, c := range s.State.Network.Subnets {
		before := len(out)
		for _, l := range s.Links {
			for _, a := range l.Addrs {
				if c.Contains(a.Addr()) && !s.ownLink(l.Name) {
					out = append(out, fault(fmt.Sprintf("give this node another pod CIDR, or %q another address", l.Name),
						"the node's pod CIDR %s holds the address %s of %q", c, a, l.Name))
				}
			}
		}
		for _, n := range s.Networks {
			if i := slices.IndexFunc(n.Subnets, c.Overlaps); i >= 0 && n.Name != s.State.Join {
				out = append(out, fault("docker network rm "+n.Name, "the engine's network %q has %s, which overlaps with the node's pod CIDR %s", n.Name, n.Subnets[i], c))
			}
		}
		for _, r := range s.Routes {
			if c.Contains(r.Dst.Addr()) && r.Dst.Bits() >= c.Bits() && !s.ownLink(r.Link) {
				out = append(out, fault(s.removeRoute(r), "a route of others, %s, takes addresses of the node's pod CIDR %s", routeText(r), c))
			}
		}
		if len(out) == before {
			out = append(out, good("nothing else lies in the node's pod CIDR %s", c))
		}
	}
	return out
}

// ownLink says whether an interface is the pod network's.
func (s Symptoms) ownLink(name string) bool {
	return slices.ContainsFunc(s.State.Gateways, func(g Gateway) bool { return g.Interface == name }) ||
		slices.ContainsFunc(s.State.Devices, func(d vxlan.Device) bool { return d.Name == name })
}

func (s Symptoms) removeRoute(r HostRoute) string {
	if s.Config.Platform.OS == "windows" {
		return fmt.Sprintf("route delete %s", r.Dst.Addr())
	}
	return fmt.Sprintf("ip route del %s", routeText(r))
}

func routeText(r HostRoute) string {
	text := r.Dst.String()
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	if r.Link != "" {
		text += " dev " + r.Link
	}
	return text
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
		return []Finding{fault("apt-get install iptables, or your system's like", "the packet filter cannot be read: %v", s.FilterErr)}
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		rules := slices.DeleteFunc(slices.Clone(s.State.Rules), func(r Rules) bool { return r.PodCIDR.Addr().Is4() != (tool == "iptables") })
		if len(rules) == 0 {
			continue
		}
		for _, c := range chains(rules) {
			saved := s.Saved[tool+" "+c.table]
			switch lines := c.diff(saved); {
			case len(lines) > 0 && c.name == forwardChain && strings.Contains(saved, ":FORWARD DROP"):
				out = append(out, fault("start the kubelet, which opens it again", "%s drops what pods exchange with other nodes: the policy of FORWARD is DROP, as Docker sets it, and %s is missing or changed", tool, c.name))
			case len(lines) > 0:
				out = append(out, fault("start the kubelet, which writes them again", "%s: the rules in %s are missing or changed", tool, c.name))
			default:
				out = append(out, good("%s has the rules of %s", tool, c.name))
			}
		}
	}
	return out
}

func tunnels(s Symptoms) (out []Finding) {
	for _, d := range s.State.Devices {
		l := s.link(d.Name)
		switch {
		case l == nil:
			out = append(out, fault("start the kubelet; where it fails: modprobe vxlan", "this host has no tunnel device %s", d.Name))
		case !l.Tunnel:
			out = append(out, fault("start the kubelet, which makes it anew", "%s is no VXLAN device with VNI %d and UDP port %d", d.Name, vxlan.VNI, vxlan.Port))
		case !l.Up || !slices.Contains(l.Addrs, d.Address):
			out = append(out, fault("start the kubelet", "the tunnel device %s is down or lacks its address %s", d.Name, d.Address))
		default:
			out = append(out, good("the tunnel device %s is up; UDP %d must be let in from the other nodes", d.Name, vxlan.Port))
		}
		if up := s.linkOf(d.Local); up != nil && up.Strict {
			out = append(out, fault(fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", up.Name),
				"%s drops packets from pods of other nodes to this host, since the way back leads through the tunnel (rp_filter is 1)", up.Name))
		}
	}
	return out
}

func mtu(s Symptoms) []Finding {
	if s.State.Network == nil || len(s.Config.NodeIPs) == 0 || len(s.State.Gateways) == 0 {
		return nil
	}
	up, pods := s.linkOf(s.Config.NodeIPs[0]), s.link(s.State.Gateways[0].Interface)
	if up == nil || pods == nil {
		return nil
	}
	limit := up.MTU
	for _, d := range s.State.Devices {
		limit = min(limit, up.MTU-vxlan.Overhead(d.Local))
	}
	// A bridge has the smallest MTU of its ports, so that it says what pods have.
	if pods.MTU > limit {
		return []Finding{fault("drain this node, then: docker network rm "+s.State.Join+"; the kubelet makes it anew",
			"pods send packets of %d bytes, the way to other nodes takes %d", pods.MTU, limit)}
	}
	return []Finding{good("pods send packets of %d bytes, the way to other nodes takes %d", pods.MTU, limit)}
}

// ways looks for the routes that the proxy writes.
func ways(s Symptoms) []Finding {
	if s.Config.Mode != HostGateway && s.Config.Mode != Overlay {
		return nil
	}
	n, kind, none := 0, "routes", "there is no route"
	if s.State.Overlay != nil {
		n, kind, none = len(s.Overlay.Remote), "remote subnets of the overlay", "the overlay has no remote subnet, and so no way"
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
	if n := s.State.Network; n != nil && n.Driver == string(Transparent) {
		out = append(out, good("driver transparent takes no policies; a virtual machine needs MAC address spoofing allowed by its host (Set-VMNetworkAdapter -MacAddressSpoofing On), which some clouds refuse: there take l2bridge"))
	}
	return out
}

// kubernetesPorts are what kubelet and proxy listen on unless told otherwise.
var kubernetesPorts = []int{10248, 10249, 10250, 10256}

func windowsPorts(s Symptoms) (out []Finding) {
	for _, e := range s.Excluded {
		for _, port := range kubernetesPorts {
			if port >= e[0] && port <= e[1] {
				out = append(out, fault(fmt.Sprintf("netsh interface ipv4 delete excludedportrange protocol=tcp startport=%d numberofports=%d, or restart the service winnat", e[0], e[1]-e[0]+1),
					"Windows keeps TCP ports %d to %d to itself, among them %d", e[0], e[1], port))
			}
		}
	}
	return out
}

// windowsFirewall looks for our rule alone: what others let in is theirs to know.
func windowsFirewall(s Symptoms) []Finding {
	switch {
	case s.NoRule:
		return nil
	case s.Admitted:
		return []Finding{good("Windows Firewall has the rule %q", FirewallRule)}
	}
	return []Finding{fault("start the kubelet, which makes it (the service mpssvc must run), or give --windows-firewall=false and let in TCP 10250 yourself",
		"Windows Firewall has no rule %q: other hosts may not reach the kubelet", FirewallRule)}
}

func windowsForwarding(s Symptoms) (out []Finding) {
	names := []string{}
	for _, g := range s.State.Gateways {
		names = append(names, g.Interface)
	}
	for _, a := range s.Config.NodeIPs {
		if l := s.linkOf(a); l != nil && s.State.Overlay == nil { // HNS' router passes on what is in the tunnel
			names = append(names, l.Name)
		}
	}
	for _, name := range names {
		if l := s.link(name); l != nil && !l.Forwarding {
			out = append(out, fault(fmt.Sprintf("netsh interface ipv4 set interface %q forwarding=enabled", name), "%q does not forward packets", name))
		}
	}
	return out
}

// parseExcluded reads `netsh interface ipv4 show excludedportrange protocol=tcp` in any language: lines that begin with two numbers.
func parseExcluded(text string) (out [][2]int) {
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		first, err1 := strconv.Atoi(fields[0])
		last, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil && first > 0 && first <= last && last <= 65535 {
			out = append(out, [2]int{first, last})
		}
	}
	return out
}
