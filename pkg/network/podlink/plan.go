package podlink

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Inside is the name of a pod's own interface.
const Inside = "eth0"

// Network is the pods' network on this host.
type Network struct {
	Bridge string  // its name
	Ranges []Range // one per family, IPv4 first
	MTU    int     // of pods' interfaces, in bytes
}

// Subnets are the subnets of the Ranges.
func (n Network) Subnets() (out []netip.Prefix) {
	for _, r := range n.Ranges {
		out = append(out, r.Subnet)
	}
	return out
}

// Range is the source of pods' addresses of one family.
type Range struct {
	Subnet  netip.Prefix
	Gateway netip.Addr // an address of the bridge
}

// Group is the interface group of the host's ends. The kernel sets it together with the name, so that even a new interface is recognizable as ours.
const Group = 0x776b

// prefix begins the names of the host's ends; digits of the container's ID follow. An interface name has at most 15 characters.
const (
	prefix = "wkp"
	digits = 12
)

// PortName is the name of the host's end for a container.
func PortName(container string) string { return prefix + container[:min(digits, len(container))] }

// IsPort says whether an interface of the host has the name of a pod's port.
func IsPort(name string) bool {
	id, ok := strings.CutPrefix(name, prefix)
	return ok && len(id) == digits && strings.Trim(id, "0123456789abcdef") == ""
}

// Port is the host's end of a pod's interface, as reported by the kernel.
type Port struct {
	Name, Alias string
	Index       int    // increases with each new interface
	Bridge      string // "": on no bridge
	Up, Hairpin bool
}

// Record is the content of a finished port's alias: the container and its addresses.
type Record struct {
	Container string
	Netns     string // of that container when it was connected
	Addrs     []netip.Addr
}

// mark begins the alias of a finished port. The kernel allows 255 bytes; this alias has fewer than 200.
const mark = "winkube"

// Alias formats the Record as an interface alias.
func (r Record) Alias() string {
	texts := make([]string, 0, len(r.Addrs))
	for _, a := range r.Addrs {
		texts = append(texts, a.String())
	}
	return strings.Join([]string{mark, r.Container, r.Netns, strings.Join(texts, ",")}, " ")
}

// ParseAlias parses a Record; ok is false if the port is not finished.
func ParseAlias(alias string) (r Record, ok bool) {
	fields := strings.Split(alias, " ")
	if len(fields) != 4 || fields[0] != mark || fields[1] == "" {
		return Record{}, false
	}
	r.Container, r.Netns = fields[1], fields[2]
	for _, text := range strings.Split(fields[3], ",") {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return Record{}, false
		}
		r.Addrs = append(r.Addrs, addr)
	}
	return r, true
}

// Action is what a Step does.
type Action string

// Actions, in the order of Steps.
const (
	MakePair  Action = "pair"    // the host's end, up and on the bridge, and the pod's end
	SetSysctl Action = "sysctl"  // of the pod's namespace
	AddAddr   Action = "address" // to the pod's end
	SetUp     Action = "up"      // the pod's end
	AddRoute  Action = "route"   // the pod's default route
	Configure Action = "port"    // hairpin on, IPv6 off, on the host's end
	Finish    Action = "finish"  // the alias: from now on the kernel shows the owner
)

// Step is one change in the kernel. Its Action determines which fields it has.
type Step struct {
	Do          Action
	Port        string
	Bridge      string
	MTU         int
	Host, Pod   MAC
	Key, Value  string // of a sysctl: net/ipv4/conf/eth0/arp_notify
	Optional    bool   // a sysctl that this kernel may lack
	Address     netip.Prefix
	Destination netip.Prefix
	Via         netip.Addr
	Alias       string
}

// String formats the Step for people.
func (s Step) String() string {
	switch s.Do {
	case MakePair:
		return fmt.Sprintf("pair %s (%s, on %s) and %s (%s), mtu %d", s.Port, s.Host, s.Bridge, Inside, s.Pod, s.MTU)
	case SetSysctl:
		return fmt.Sprintf("sysctl %s=%s", s.Key, s.Value)
	case AddAddr:
		return fmt.Sprintf("address %s", s.Address)
	case AddRoute:
		return fmt.Sprintf("route %s via %s", s.Destination, s.Via)
	case Finish:
		return fmt.Sprintf("finish %s: %q", s.Port, s.Alias)
	}
	return strings.TrimSpace(string(s.Do) + " " + s.Port)
}

// MAC is a hardware address.
type MAC [6]byte

// String formats the address with colons.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// macOf derives an address from the last four bytes of an IP address, which are unique on the bridge. first is 0x0a for the IP address's owner and
// 0x06 for the other end; both are unicast and locally administered. Neighbor entries of others stay valid when an IP address is reused.
func macOf(first byte, a netip.Addr) MAC {
	bytes := a.AsSlice()
	m := MAC{first, 0x2a}
	copy(m[2:], bytes[len(bytes)-4:])
	return m
}

// BridgeMAC is the address of a bridge that we create: pods cache it, and a bridge without an explicit address takes that of a port.
func (n Network) BridgeMAC() MAC { return macOf(0x0a, n.Ranges[0].Gateway) }

// Steps connect a container. Until Finish sets the alias, everything is discarded with the port: an attempt by a program that dies before counts as
// not begun. sysctls are the pod's, for its own interface.
func Steps(n Network, r Record, sysctls map[string]string) []Step {
	port := PortName(r.Container)
	six := slices.ContainsFunc(r.Addrs, netip.Addr.Is6)
	out := []Step{{Do: MakePair, Port: port, Bridge: n.Bridge, MTU: n.MTU, Host: macOf(0x06, r.Addrs[0]), Pod: macOf(0x0a, r.Addrs[0])}}
	sysctl := func(key, value string, optional bool) {
		out = append(out, Step{Do: SetSysctl, Key: key, Value: value, Optional: optional})
	}
	sysctl("net/ipv4/conf/"+Inside+"/arp_notify", "1", false) // announces the pod's new location to the bridge
	if six {
		// Engines disable IPv6 in a namespace without addresses. Addresses are unique in the cluster, and the only router is the gateway.
		sysctl("net/ipv6/conf/lo/disable_ipv6", "0", false)
		sysctl("net/ipv6/conf/"+Inside+"/disable_ipv6", "0", false)
		sysctl("net/ipv6/conf/"+Inside+"/accept_dad", "0", false)
		sysctl("net/ipv6/conf/"+Inside+"/accept_ra", "0", false)
		sysctl("net/ipv6/conf/"+Inside+"/ndisc_notify", "1", true) // Linux 3.11
	} else {
		sysctl("net/ipv6/conf/"+Inside+"/disable_ipv6", "1", true)
	}
	out = append(out, SysctlSteps(sysctls)...)
	add := func(four bool) {
		for _, a := range r.Addrs {
			if a.Is4() == four {
				out = append(out, Step{Do: AddAddr, Address: netip.PrefixFrom(a, n.bits(a))})
			}
		}
	}
	add(true) // before the interface is up, which announces them; kernels before 4.6 drop IPv6 routes that were added earlier
	out = append(out, Step{Do: SetUp})
	add(false)
	for _, a := range r.Addrs {
		if via := n.gateway(a); via.IsValid() {
			all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if a.Is6() {
				all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			out = append(out, Step{Do: AddRoute, Destination: all, Via: via})
		}
	}
	return append(out, Step{Do: Configure, Port: port}, Step{Do: Finish, Port: port, Alias: r.Alias()})
}

// SysctlSteps set a pod's sysctls for an existing interface.
func SysctlSteps(sysctls map[string]string) (out []Step) {
	for _, key := range slices.Sorted(maps.Keys(sysctls)) {
		out = append(out, Step{Do: SetSysctl, Key: key, Value: sysctls[key]})
	}
	return out
}

// of is the range that contains a.
func (n Network) of(a netip.Addr) (Range, bool) {
	i := slices.IndexFunc(n.Ranges, func(r Range) bool { return r.Subnet.Contains(a) })
	if i < 0 {
		return Range{}, false
	}
	return n.Ranges[i], true
}

// bits is the prefix length of a's range, or a's full length if no range contains it, as after the Node's range changed.
func (n Network) bits(a netip.Addr) int {
	if r, ok := n.of(a); ok {
		return r.Subnet.Bits()
	}
	return a.BitLen()
}

func (n Network) gateway(a netip.Addr) netip.Addr {
	r, _ := n.of(a)
	return r.Gateway
}

// Repair is what a port needs.
type Repair struct {
	Port    string
	Remove  bool // it is incomplete, and no one is working on it
	Join    bool // it is not on the bridge
	Up      bool
	Hairpin bool
}

// Compare returns the ports that need repair. It is pure.
func Compare(n Network, ports []Port) (out []Repair) {
	for _, p := range ports {
		r := Repair{Port: p.Name}
		if _, done := ParseAlias(p.Alias); !done {
			r.Remove = true
		} else {
			r.Join, r.Up, r.Hairpin = p.Bridge != n.Bridge, !p.Up, !p.Hairpin
		}
		if r != (Repair{Port: p.Name}) {
			out = append(out, r)
		}
	}
	return out
}

// free returns the next free address of the range after the given one, so that an address is unused as long as possible before its reuse. upper
// excludes the lower half: an engine with a network of the same range assigns the lowest free address.
func (r Range) free(taken func(netip.Addr) bool, after netip.Addr, upper bool) (netip.Addr, error) {
	first := r.Subnet.Masked().Addr().Next()
	if upper {
		first = r.middle()
	}
	last := r.broadcast()
	next := func(a netip.Addr) netip.Addr {
		if a = a.Next(); !a.IsValid() || !r.Subnet.Contains(a) || a == last {
			return first
		}
		return a
	}
	at := first
	if r.Subnet.Contains(after) && after.Compare(first) >= 0 {
		at = next(after)
	}
	for begin := at; ; {
		if at != r.Gateway && !taken(at) {
			return at, nil
		}
		if at = next(at); at == begin {
			return netip.Addr{}, fmt.Errorf("no address of %s is free", r.Subnet)
		}
	}
}

// middle is the first address of the upper half.
func (r Range) middle() netip.Addr {
	bytes := r.Subnet.Masked().Addr().AsSlice()
	bit := r.Subnet.Bits()
	bytes[bit/8] |= 0x80 >> (bit % 8)
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// broadcast is the range's broadcast address; IPv6 has none.
func (r Range) broadcast() netip.Addr {
	if r.Subnet.Addr().Is6() {
		return netip.Addr{}
	}
	bytes := r.Subnet.Masked().Addr().AsSlice()
	for bit := r.Subnet.Bits(); bit < 32; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// pid parses a path of the form /proc/PID/ns/net; ok is false for other forms.
func pid(netns string) (int, bool) {
	text, ok := strings.CutPrefix(netns, "/proc/")
	text, ok2 := strings.CutSuffix(text, "/ns/net")
	n, err := strconv.Atoi(text)
	return n, ok && ok2 && err == nil
}

// Owned checks by its cgroup that a namespace's process belongs to a container: a PID may have been reused. Engines name a container's cgroup after
// its ID.
func Owned(netns, container string, read func(pid int) ([]byte, error)) error {
	id, ok := pid(netns)
	if !ok {
		return fmt.Errorf("network namespace %q: want /proc/PID/ns/net", netns)
	}
	groups, err := read(id)
	if err != nil {
		return errors.Join(ErrGone, err)
	}
	if !strings.Contains(string(groups), container) {
		return fmt.Errorf("%w: process %d is no process of container %.12s", ErrGone, id, container)
	}
	return nil
}
