package addresses

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// Priorities of the rules for single ports: after the kernel's own for local addresses (0) and ours for replies (119),
// before those of other programs for traffic through this host, and before main (32766).
const (
	coverPriority = 120 // to an address near one of the fronts: go to portPriority
	skipPriority  = 121 // to any other: go to endPriority
	portPriority  = 122 // one rule for each protocol and port: look up its table
	endPriority   = 123 // target of skipPriority
)

const (
	// fewPorts is the number of port rules that every packet may traverse. With more, traffic to addresses that are far
	// from all fronts skips them.
	fewPorts = 16
	// maxCovers is the number of prefixes that define what is near.
	maxCovers = 4
	// firstTable is the base of our tables' numbers: 119, two digits for the protocol, five for the port.
	firstTable = ownProtocol * 10_000_000
)

// policyRule has the fields in which our rules differ.
type policyRule struct {
	family, priority int
	protocol         int          // IP protocol; 0: any
	port             uint16       // 0: any
	to               netip.Prefix // zero: anywhere
	table            int          // 0: none
	jump             int          // priority of the next rule; 0: none
}

// heldPort is a front's address in the table of its port.
type heldPort struct {
	table int
	addr  netip.Addr
}

func protocolNumber(p v1.Protocol) int {
	if p == v1.ProtocolUDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

func portTable(f front) int {
	return firstTable + protocolNumber(f.Protocol)*100_000 + int(f.Addr.Port())
}

// isPortTable reports whether portTable returns that number for some front.
func isPortTable(table int) bool {
	n := table - firstTable
	return n/100_000 == unix.IPPROTO_TCP || n/100_000 == unix.IPPROTO_UDP
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// policy returns the rules and routes that make fronts local.
func policy(fronts []front) (rules map[policyRule]bool, routes map[heldPort]bool) {
	rules, routes = map[policyRule]bool{}, map[heldPort]bool{}
	addrs, ports := map[int][]netip.Addr{}, map[int]int{}
	for _, f := range fronts {
		family := familyOf(f.Addr.Addr())
		rule := policyRule{family: family, priority: portPriority, protocol: protocolNumber(f.Protocol), port: f.Addr.Port(), table: portTable(f)}
		if !rules[rule] {
			rules[rule] = true
			ports[family]++
		}
		routes[heldPort{rule.table, f.Addr.Addr()}] = true
		addrs[family] = append(addrs[family], f.Addr.Addr())
	}
	for family, n := range ports {
		if n <= fewPorts {
			continue
		}
		near := covers(addrs[family])
		if near == nil {
			continue
		}
		for _, prefix := range near {
			rules[policyRule{family: family, priority: coverPriority, to: prefix, jump: portPriority}] = true
		}
		rules[policyRule{family: family, priority: skipPriority, jump: endPriority}] = true
		rules[policyRule{family: family, priority: endPriority}] = true
	}
	return rules, routes
}

// covers returns up to maxCovers prefixes that contain all addresses, which are of one family, and as few others as
// possible; nil: they would contain everything.
func covers(addrs []netip.Addr) []netip.Prefix {
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	gaps := make([]int, 0, len(addrs)) // gaps[i] is between addrs[i] and addrs[i+1]
	for i := range len(addrs) - 1 {
		gaps = append(gaps, i)
	}
	slices.SortStableFunc(gaps, func(a, b int) int {
		return cmp.Compare(common(addrs[a], addrs[a+1]), common(addrs[b], addrs[b+1]))
	})
	ends := append(slices.Clone(gaps[:min(len(gaps), maxCovers-1)]), len(addrs)-1) // leave out the widest gaps
	slices.Sort(ends)
	var out []netip.Prefix
	first := 0
	for _, last := range ends {
		prefix, _ := addrs[first].Prefix(common(addrs[first], addrs[last]))
		if prefix.Bits() == 0 {
			return nil
		}
		out = append(out, prefix)
		first = last + 1
	}
	return out
}

// common returns the length of the common prefix of two addresses of a family.
func common(a, b netip.Addr) int {
	for bits := a.BitLen(); ; bits-- {
		if p, _ := a.Prefix(bits); p.Contains(b) {
			return bits
		}
	}
}

// portRules make single ports of addresses local that are not this host's, and leave the rest of each address
// unchanged:
//
//	ip rule:                          122: from all ipproto tcp dport 80 lookup 1190600080 proto 119
//	ip route show table 1190600080:   local 203.0.113.9 dev lo proto 119 src <this host's address>
//
// For ARP the kernel looks up local addresses without ports, so it does not answer for these. The protocol marks rules
// and routes as ours, for the next proxy. Call set and probe from one goroutine.
type portRules struct {
	look   bool           // the host may have some of ours
	probed map[int]bool   // by family: tested on the kernel
	no     map[int]string // by family: why it does not support such rules

	mu     sync.Mutex
	rules  map[policyRule]bool // wanted
	routes map[heldPort]bool
}

func newPortRules() *portRules {
	return &portRules{look: true, probed: map[int]bool{}, no: map[int]string{}}
}

// probe tests, once per family, whether the kernel supports rules with ports: kernels before 4.17 accept such a rule
// but ignore the ports.
func (p *portRules) probe(f front) {
	family := familyOf(f.Addr.Addr())
	if p.probed[family] {
		return
	}
	p.probed[family] = true
	if err := tryRule(f); err != nil {
		p.no[family] = err.Error()
		klog.InfoS("Holding external and load balancer addresses as a whole, because this host does not support routing rules for single ports (needs Linux 4.17): their other ports cannot be reached from here",
			"address", f.Addr.Addr(), "reason", err)
	}
}

// tryRule adds the rule of a front, whose table is still empty.
func tryRule(f front) error {
	socket, err := openRulesSocket()
	if err != nil {
		return err
	}
	defer socket.close()
	rules, _ := policy([]front{f})
	for rule := range rules {
		if err := socket.add(rule); err != nil {
			return err
		}
		have, err := listRules()
		if err != nil {
			return err
		}
		if !have[rule] {
			_ = socket.remove(policyRule{family: rule.family, priority: rule.priority, table: rule.table}) // in the form that the kernel understood
			return errors.New("its kernel ignores the port: this needs Linux 4.17")
		}
	}
	return nil
}

// holds reports whether single ports of an address can be made local.
func (p *portRules) holds(addr netip.Addr) bool { return p.no[familyOf(addr)] == "" }

// set makes fronts local, and removes everything else that is ours. host are the addresses of this host.
func (p *portRules) set(fronts []front, host []netip.Addr) error {
	rules, routes := policy(fronts)
	p.mu.Lock()
	p.rules, p.routes = rules, routes
	p.mu.Unlock()
	if len(fronts) == 0 && !p.look {
		return nil
	}
	haveRules, err := listRules()
	if err != nil {
		return err
	}
	haveRoutes, err := listHeld()
	if err != nil {
		return err
	}
	socket, err := openRulesSocket()
	if err != nil {
		return err
	}
	defer socket.close()
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE) // one socket for all changes: there may be thousands
	if err != nil {
		return fmt.Errorf("cannot change routes: %w", err)
	}
	defer handle.Close()
	p.look = true
	var errs []error
	// Rules are added before routes and removed after them, so that neither alone misdirects a packet.
	for _, rule := range slices.SortedFunc(maps.Keys(rules), comparePolicy) {
		if !haveRules[rule] {
			errs = append(errs, socket.add(rule))
		}
	}
	errs = append(errs, addHeld(handle, routes, haveRoutes, host), removeHeld(handle, routes, haveRoutes))
	for _, rule := range slices.Backward(slices.SortedFunc(maps.Keys(haveRules), comparePolicy)) {
		if !rules[rule] {
			errs = append(errs, socket.remove(rule))
		}
	}
	err = errors.Join(errs...)
	p.look = len(fronts) > 0 || err != nil
	return err
}

// comparePolicy sorts rules after those to which they lead: the one that skips the others is last.
func comparePolicy(a, b policyRule) int {
	order := map[int]int{endPriority: 0, portPriority: 1, coverPriority: 2, skipPriority: 3}
	return cmp.Or(cmp.Compare(order[a.priority], order[b.priority]), cmp.Compare(a.family, b.family), cmp.Compare(a.table, b.table), a.to.Compare(b.to))
}

// request returns the message that adds or removes a rule.
func (r policyRule) request(operation int) *nl.NetlinkRequest {
	flags := unix.NLM_F_ACK
	if operation == unix.RTM_NEWRULE {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	request := nl.NewNetlinkRequest(operation, flags)
	message := nl.NewRtMsg()
	message.Family, message.Table, message.Protocol, message.Scope, message.Type = uint8(r.family), 0, 0, 0, nl.FR_ACT_NOP
	number := func(attribute, value int) *nl.RtAttr {
		return nl.NewRtAttr(attribute, binary.NativeEndian.AppendUint32(nil, uint32(value)))
	}
	attributes := []*nl.RtAttr{number(nl.FRA_PRIORITY, r.priority), nl.NewRtAttr(nl.FRA_PROTOCOL, []byte{ownProtocol})}
	if r.protocol != 0 {
		attributes = append(attributes, nl.NewRtAttr(nl.FRA_IP_PROTO, []byte{byte(r.protocol)}))
	}
	if r.port != 0 {
		both := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, r.port), r.port)
		attributes = append(attributes, nl.NewRtAttr(nl.FRA_DPORT_RANGE, both))
	}
	if r.to.IsValid() {
		message.Dst_len = uint8(r.to.Bits())
		attributes = append(attributes, nl.NewRtAttr(nl.FRA_DST, r.to.Addr().AsSlice()))
	}
	switch {
	case r.table != 0:
		message.Type = nl.FR_ACT_TO_TBL
		attributes = append(attributes, number(nl.FRA_TABLE, r.table))
	case r.jump != 0:
		message.Type = nl.FR_ACT_GOTO
		attributes = append(attributes, number(nl.FRA_GOTO, r.jump))
	}
	request.AddData(message)
	for _, a := range attributes {
		request.AddData(a)
	}
	return request
}

// readRule parses a rule in a kernel message; false: it is not ours.
func readRule(message []byte) (policyRule, bool) {
	header := nl.DeserializeRtMsg(message)
	attributes, err := nl.ParseRouteAttr(message[header.Len():])
	if err != nil {
		return policyRule{}, false
	}
	r, mark := policyRule{family: int(header.Family)}, byte(0)
	for _, a := range attributes {
		switch a.Attr.Type {
		case nl.FRA_PROTOCOL:
			mark = a.Value[0]
		case nl.FRA_PRIORITY:
			r.priority = int(binary.NativeEndian.Uint32(a.Value))
		case nl.FRA_TABLE:
			r.table = int(binary.NativeEndian.Uint32(a.Value))
		case nl.FRA_GOTO:
			r.jump = int(binary.NativeEndian.Uint32(a.Value))
		case nl.FRA_IP_PROTO:
			r.protocol = int(a.Value[0])
		case nl.FRA_DPORT_RANGE:
			r.port = binary.NativeEndian.Uint16(a.Value)
		case nl.FRA_DST:
			addr, _ := netip.AddrFromSlice(a.Value)
			r.to = netip.PrefixFrom(addr, int(header.Dst_len))
		}
	}
	return r, mark == ownProtocol && r.priority >= coverPriority && r.priority <= endPriority
}

// rulesSocket changes rules through one socket: there may be thousands.
type rulesSocket map[int]*nl.SocketHandle

func openRulesSocket() (rulesSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("cannot change rules: %w", err)
	}
	return rulesSocket{unix.NETLINK_ROUTE: {Socket: socket}}, nil
}

func (s rulesSocket) close() { s[unix.NETLINK_ROUTE].Close() }

func (s rulesSocket) add(r policyRule) error {
	if err := s.change(r, unix.RTM_NEWRULE); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot add the rule of priority %d for port %d: %w", r.priority, r.port, err)
	}
	return nil
}

func (s rulesSocket) remove(r policyRule) error {
	if err := s.change(r, unix.RTM_DELRULE); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove the rule of priority %d for port %d: %w", r.priority, r.port, err)
	}
	return nil
}

func (s rulesSocket) change(r policyRule, operation int) error {
	request := r.request(operation)
	request.Sockets = s
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// listRules returns our rules of both families.
func listRules() (map[policyRule]bool, error) {
	out := map[policyRule]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		request := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
		request.AddData(nl.NewIfInfomsg(family))
		messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
		if err != nil && family == netlink.FAMILY_V4 { // a host without IPv6 has no IPv6 rules
			return nil, fmt.Errorf("cannot list rules: %w", err)
		}
		for _, message := range messages {
			if r, ok := readRule(message); ok {
				out[r] = true
			}
		}
	}
	return out, nil
}

// listHeld returns our routes in the tables of ports.
func listHeld() (map[heldPort]netlink.Route, error) {
	all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: ownProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("cannot list routes: %w", err)
	}
	out := map[heldPort]netlink.Route{}
	for _, r := range all {
		if h, ok := heldOf(&r); ok {
			out[h] = r
		}
	}
	return out, nil
}

// heldOf parses a route; false: it is not for one of our ports.
func heldOf(r *netlink.Route) (heldPort, bool) {
	to := destination(r)
	return heldPort{r.Table, to.Addr()}, r.Protocol == ownProtocol && isPortTable(r.Table) && to.IsValid()
}

// addHeld adds missing routes, and replaces those whose source address this host no longer has.
func addHeld(handle *netlink.Handle, want map[heldPort]bool, have map[heldPort]netlink.Route, host []netip.Addr) error {
	var errs []error
	loopback, from := 0, sources{handle, host, map[bool]net.IP{}}
	for h := range want {
		if r, ok := have[h]; ok {
			if src, given := netip.AddrFromSlice(r.Src); !given || slices.Contains(host, src.Unmap()) {
				continue
			}
		}
		if loopback == 0 {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return fmt.Errorf("cannot find interface lo: %w", err)
			}
			loopback = lo.Attrs().Index
		}
		whole := netip.PrefixFrom(h.addr, h.addr.BitLen())
		err := handle.RouteReplace(&netlink.Route{LinkIndex: loopback, Table: h.table, Type: unix.RTN_LOCAL, Protocol: ownProtocol, Scope: scopeOf(whole),
			Dst: ipNet(whole), Src: from.towards(h.addr)})
		if err != nil {
			errs = append(errs, &relay.AddressError{Addr: h.addr, Err: fmt.Errorf("cannot hold port %d: %w", h.table%100_000, err)})
		}
	}
	return errors.Join(errs...)
}

func removeHeld(handle *netlink.Handle, want map[heldPort]bool, have map[heldPort]netlink.Route) error {
	var errs []error
	for h, r := range have {
		if want[h] {
			continue
		}
		if err := handle.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, &relay.AddressError{Addr: h.addr, Err: fmt.Errorf("cannot release port %d: %w", h.table%100_000, err)})
		}
	}
	return errors.Join(errs...)
}

// sources finds the address from which this host would connect to another one if none of that one's ports were local.
type sources struct {
	handle *netlink.Handle
	host   []netip.Addr
	node   map[bool]net.IP // by whether it is IPv4: used if no route leads there; looked up once
}

// towards returns nil if there is none.
func (s *sources) towards(addr netip.Addr) net.IP {
	if list, err := s.handle.RouteGet(addr.AsSlice()); err == nil && len(list) == 1 {
		if src, ok := netip.AddrFromSlice(list[0].Src); ok && slices.Contains(s.host, src.Unmap()) && !src.IsLoopback() {
			return src.Unmap().AsSlice()
		}
	}
	if _, ok := s.node[addr.Is4()]; !ok {
		s.node[addr.Is4()] = nodeSource(netip.PrefixFrom(addr, addr.BitLen()))
	}
	return s.node[addr.Is4()]
}

// takenRule reports whether the removal of a rule, which a kernel message reports, may affect a wanted one.
func (p *portRules) takenRule(message []byte) bool {
	r, ours := readRule(message)
	p.mu.Lock()
	defer p.mu.Unlock()
	return !ours || p.rules[r] // other programs' rules matter to the caller too
}

// takenRoute reports whether a removed route is a wanted one.
func (p *portRules) takenRoute(r *netlink.Route) bool {
	h, ok := heldOf(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	return ok && p.routes[h]
}
