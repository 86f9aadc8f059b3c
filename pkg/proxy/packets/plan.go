package packets

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/proxy"
)

// Facts are what the rules need to know of this host.
type Facts struct {
	Nodes []netip.Addr   // addresses that serve node ports, sorted
	Pods  []netip.Prefix // ranges of this node's pods
	// Links names the interface that leads to an endpoint's address; "" or lo: this host itself, or unknown.
	Links map[netip.Addr]string
}

// Chains. Others have prefix and a hash, of the front or of the front and an endpoint.
const (
	prefix      = "WINKUBE-SCTP"
	frontsChain = prefix            // table nat: leads to the chain of a front
	nodesChain  = prefix + "-NODES" // node ports
	clientChain = prefix + "-FROM"  // notes who the client is
	leaveChain  = prefix + "-LEAVE" // masquerades
	passChain   = prefix + "-PASS"  // table filter: lets our connections be forwarded
	denyChain   = prefix + "-DENY"  // what no rule of the table nat has led to an endpoint
	denyNodes   = prefix + "-DENYN" // node ports
)

// Bits of a connection's mark. It has no effect on routing.
const (
	nearBit  = 0x1000000 // the client is on this node
	leaveBit = 0x2000000 // the endpoint must see an address of this host
	ownBit   = 0x4000000 // a rule of ours led it to an endpoint
	ownMask  = nearBit | leaveBit | ownBit
)

// Served reports whether the rules serve a Route.
func Served(r *proxy.Route) bool { return r.Protocol == v1.ProtocolSCTP }

// Plan returns the rules for the Routes of one family, sorted by front. It is pure.
func Plan(routes []proxy.Route, facts Facts, four bool) iptables.Set {
	p := &plan{facts: facts, four: four}
	p.fronts, p.client = p.table("nat", frontsChain), p.table("nat", clientChain)
	p.deny = p.table("filter", denyChain)
	var nodes, closed *iptables.Chain
	for i := range routes {
		r := &routes[i]
		if !Served(r) || r.Front.Addr().Is4() != four {
			continue
		}
		p.any = true
		if !r.Front.Addr().IsUnspecified() {
			p.front(r, p.fronts, p.deny, "-d "+single(r.Front.Addr())+" ")
			continue
		}
		if nodes == nil {
			nodes, closed = p.table("nat", nodesChain), p.table("filter", denyNodes)
		}
		p.front(r, nodes, closed, "")
	}
	if !p.any {
		return iptables.Set{}
	}
	p.nodePorts(nodes, closed)
	p.clients()
	p.table("nat", leaveChain).Rules = []string{fmt.Sprintf("! -o lo -m connmark --mark %#x/%#x -j MASQUERADE", leaveBit, leaveBit)}
	p.table("filter", passChain).Rules = []string{
		"-m conntrack ! --ctstate RELATED,ESTABLISHED -j " + denyChain,
		fmt.Sprintf("-m connmark --mark %#x/%#x -j ACCEPT", ownBit, ownBit),
	}
	return iptables.Set{Chains: p.sorted(), Jumps: jumps()}
}

// jumps are the ways into our chains. Those of Docker and of a kube-proxy that was here come after them.
func jumps() []iptables.Jump {
	const all, unseen = "-p sctp", "-p sctp -m conntrack ! --ctstate RELATED,ESTABLISHED"
	var out []iptables.Jump
	for _, j := range []iptables.Jump{
		{Table: "nat", Base: "PREROUTING", To: frontsChain, Match: all}, {Table: "nat", Base: "OUTPUT", To: frontsChain, Match: all},
		{Table: "nat", Base: "POSTROUTING", To: leaveChain, Match: all},
		{Table: "filter", Base: "INPUT", To: denyChain, Match: unseen}, {Table: "filter", Base: "OUTPUT", To: denyChain, Match: unseen},
		{Table: "filter", Base: "FORWARD", To: passChain, Match: all},
	} {
		j.Before = others
		out = append(out, j)
	}
	return out
}

// others recognizes the targets of rules of Docker and kube-proxy, without the administrator's chain, and of the
// kubelet's rules that let all packets of pods pass.
func others(target string) bool {
	return iptables.OfOthers(target) || target == iptables.ForwardChain
}

// plan collects the chains of one family.
type plan struct {
	facts  Facts
	four   bool
	any    bool
	chains []*iptables.Chain
	fronts *iptables.Chain
	client *iptables.Chain
	deny   *iptables.Chain
}

func (p *plan) table(table, name string) *iptables.Chain {
	c := &iptables.Chain{Table: table, Name: name}
	p.chains = append(p.chains, c)
	return c
}

func (p *plan) sorted() (out []iptables.Chain) {
	slices.SortFunc(p.chains, func(a, b *iptables.Chain) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range p.chains {
		out = append(out, *c)
	}
	return out
}

// nodePorts leads the host's addresses to the chains of node ports, after all fronts at one address.
func (p *plan) nodePorts(nodes, closed *iptables.Chain) {
	if nodes == nil {
		return
	}
	for _, addr := range p.facts.Nodes {
		if addr.Is4() != p.four {
			continue
		}
		p.fronts.Rules = append(p.fronts.Rules, "-d "+single(addr)+" -j "+nodesChain)
		p.deny.Rules = append(p.deny.Rules, "-d "+single(addr)+" -j "+denyNodes)
	}
}

// clients writes the chain that marks a connection by its client. One of the host's own connections may come from an
// address to which the endpoint knows another way back, as the address of the Service, so it leaves by one of the
// interface.
func (p *plan) clients() {
	add := func(match string, bits int) {
		p.client.Rules = append(p.client.Rules, strings.TrimPrefix(fmt.Sprintf("%s -j CONNMARK --set-xmark %#x/%#x", match, bits, ownMask), " "))
	}
	add("", ownBit)
	for _, pods := range p.facts.Pods {
		if pods.Addr().Is4() == p.four {
			add("-s "+pods.Masked().String(), ownBit|nearBit)
		}
	}
	add("-m addrtype --src-type LOCAL", ownBit|nearBit|leaveBit)
}

// front writes the rules of one front: in is the chain that leads to it, closed the one for packets that it did not
// accept, at its address.
func (p *plan) front(r *proxy.Route, in, closed *iptables.Chain, at string) {
	port := fmt.Sprintf("-p sctp -m sctp --dport %d", r.Front.Port())
	far, near := r.Targets(), r.Targets()
	if len(r.Near) > 0 {
		near = r.NearTargets()
	}
	from := p.sources(r)
	target := "ACCEPT" // by no endpoint, and by no rule of others
	if len(far)+len(near) > 0 {
		c := p.table("nat", prefix+"-"+hash(r.Key().String()))
		target = c.Name
		c.Rules = append(c.Rules, "-j "+clientChain)
		if !slices.Equal(far, near) {
			n := p.table("nat", c.Name+"-N")
			p.spread(r, n, near)
			c.Rules = append(c.Rules, fmt.Sprintf("-m connmark --mark %#x/%#x -j %s", nearBit, nearBit, n.Name))
		}
		p.spread(r, c, far)
		p.endpoints(r, far, near)
		if len(far) == 0 {
			c.Rules = append(c.Rules, "-j ACCEPT")
		}
	}
	for _, source := range from {
		in.Rules = append(in.Rules, source+at+port+" -j "+target)
	}
	if len(r.Sources) > 0 {
		in.Rules = append(in.Rules, at+port+" -j ACCEPT")
	}
	reject := "REJECT --reject-with " + map[bool]string{true: "icmp-proto-unreachable", false: "icmp6-port-unreachable"}[p.four]
	if len(far) == 0 && r.Drop {
		reject = "DROP"
	}
	for _, source := range from {
		closed.Rules = append(closed.Rules, source+at+port+" -j "+reject)
	}
	if len(r.Sources) > 0 {
		closed.Rules = append(closed.Rules, at+port+" -j DROP")
	}
}

// sources returns the matches of the clients that may use a front, each followed by a space: proxy.Route.Allows as rules.
func (p *plan) sources(r *proxy.Route) []string {
	if len(r.Sources) == 0 {
		return []string{""}
	}
	var out []string
	for _, s := range r.Sources {
		out = append(out, "-s "+s.Masked().String()+" ")
	}
	return append(out, "-s "+single(r.Front.Addr())+" ")
}

// spread writes the rules that choose one of list.
func (p *plan) spread(r *proxy.Route, c *iptables.Chain, list []proxy.Endpoint) {
	if r.Affinity > 0 && len(list) > 1 {
		for _, e := range list {
			name := endpointChain(r, e)
			c.Rules = append(c.Rules, fmt.Sprintf("-m recent --rcheck --seconds %d --reap --name %s %s -j %s", int(r.Affinity/time.Second), name, p.mask(), name))
		}
	}
	for i, e := range list {
		match := ""
		if left := len(list) - i; left > 1 {
			match = "-m statistic --mode random --probability " + probability(left) + " "
		}
		c.Rules = append(c.Rules, match+"-j "+endpointChain(r, e))
	}
}

// mask is how iptables-save prints that a client is one address.
func (p *plan) mask() string {
	if p.four {
		return "--mask 255.255.255.255 --rsource"
	}
	return "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource"
}

// endpoints writes the chains of a front's endpoints. An endpoint sees an address of this host where its packets would
// otherwise not come back this way: its client is behind the same interface, or elsewhere while the endpoint is on
// another node.
func (p *plan) endpoints(r *proxy.Route, far, near []proxy.Endpoint) {
	all := slices.Concat(far, near)
	slices.SortFunc(all, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	leave := fmt.Sprintf(" -j CONNMARK --set-xmark %#x/%#x", leaveBit, leaveBit)
	all = slices.CompactFunc(all, func(a, b proxy.Endpoint) bool { return a.Addr == b.Addr })
	for _, e := range all {
		c := p.table("nat", endpointChain(r, e))
		if link := p.facts.Links[e.Addr.Addr()]; link != "" && link != "lo" {
			c.Rules = append(c.Rules, "-i "+link+leave)
		}
		if !e.Local {
			c.Rules = append(c.Rules, fmt.Sprintf("-m connmark --mark 0x0/%#x", nearBit)+leave)
		}
		if r.Affinity > 0 && len(all) > 1 {
			c.Rules = append(c.Rules, "-m recent --set --name "+c.Name+" "+p.mask())
		}
		c.Rules = append(c.Rules, "-p sctp -j DNAT --to-destination "+e.Addr.String())
	}
}

func endpointChain(r *proxy.Route, e proxy.Endpoint) string {
	return prefix + "-" + hash(r.Key().String()+" "+e.Addr.String()) + "-E"
}

// hash is short enough for the name of a chain, of at most 28 characters.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:12]
}

// probability is one of n, as iptables-save prints what the kernel keeps.
func probability(n int) string {
	const whole = 1 << 31
	return fmt.Sprintf("%.11f", math.Round(whole/float64(n))/whole)
}

func single(addr netip.Addr) string { return netip.PrefixFrom(addr, addr.BitLen()).String() }
