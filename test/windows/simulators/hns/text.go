package hns

import (
	"fmt"
	"slices"
	"strings"
)

// String returns the state as sorted text without IDs. Equal text means that HNS treats traffic equally.
func (h *HNS) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	if !h.running {
		fmt.Fprintln(&b, "service down")
	}
	for _, n := range sorted(h.networks, func(n *Network) string { return n.Name }) {
		h.printNetwork(&b, n)
	}
	var lines []string
	for _, l := range h.loadBalancers {
		lines = append(lines, h.loadBalancerText(l))
	}
	for _, r := range h.routes {
		for _, s := range r.Setting {
			lines = append(lines, fmt.Sprintf("route %s next hop %s encap %t on %s\n", s.DestinationPrefix, orDash(s.NextHop), s.NeedEncap, h.endpointsText(r.HostComputeEndpoints)))
		}
	}
	for _, ns := range h.namespaces {
		text := fmt.Sprintf("namespace %d %s\n", ns.NamespaceId, ns.Type)
		for _, r := range ns.Resources {
			if name := r.Data.ID; r.Type == "Endpoint" {
				text += fmt.Sprintf("  endpoint %s\n", h.endpointsText([]string{name}))
			} else {
				text += fmt.Sprintf("  container %s\n", name)
			}
		}
		lines = append(lines, text)
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	return b.String()
}

func (h *HNS) printNetwork(b *strings.Builder, n *Network) {
	fmt.Fprintf(b, "network %s %s", n.Type, n.Name)
	if adapter := h.bound[n.ID]; adapter != "" {
		fmt.Fprintf(b, " on %s", adapter)
	}
	if n.Flags != 0 {
		fmt.Fprintf(b, " flags %d", n.Flags)
	}
	fmt.Fprintln(b)
	for _, s := range n.subnets() {
		gateway, _ := s.gateway()
		fmt.Fprintf(b, "  subnet %s gateway %s\n", s.IpAddressPrefix, gateway)
		printPolicies(b, "    ", s.Policies)
	}
	printPolicies(b, "  ", n.Policies)
	for _, e := range sorted(h.endpoints, endpointText) {
		if e.HostComputeNetwork != n.ID {
			continue
		}
		fmt.Fprintf(b, "  endpoint %s mac %s", endpointText(e), e.MacAddress)
		if e.Name != "" {
			fmt.Fprintf(b, " name %s", e.Name)
		}
		if gateway := e.gateway("0.0.0.0/0"); gateway != "" && !slices.ContainsFunc(n.subnets(), func(s Subnet) bool { own, _ := s.gateway(); return own.String() == gateway }) {
			fmt.Fprintf(b, " gateway %s", gateway)
		}
		if len(e.Dns.ServerList) > 0 || len(e.Dns.Search) > 0 {
			fmt.Fprintf(b, " dns %s search %s", orDash(strings.Join(e.Dns.ServerList, ",")), orDash(strings.Join(e.Dns.Search, ",")))
		}
		if len(e.attached) > 0 {
			fmt.Fprintf(b, " attached to %s", strings.Join(e.attached, ", "))
		}
		fmt.Fprintln(b)
		printPolicies(b, "    ", e.Policies)
	}
}

func printPolicies(b *strings.Builder, indent string, list []Policy) {
	for _, p := range list {
		fmt.Fprintf(b, "%spolicy %s %s\n", indent, p.Type, canonical(p.Settings))
	}
}

var (
	protocols         = map[uint32]string{6: "tcp", 17: "udp", 132: "sctp"}
	balancerFlags     = []string{"dsr", "ipv6"}
	mappingFlags      = []string{"ilb", "local-routed-vip", "mux", "preserve-dip", "external-ip-vip"}
	distributionNames = []string{"", " client-and-protocol", " client"}
)

func (h *HNS) loadBalancerText(l *LoadBalancer) string {
	var b strings.Builder
	vip := "host"
	if len(l.FrontendVIPs) > 0 {
		vip = strings.Join(l.FrontendVIPs, ",")
	}
	for _, p := range l.PortMappings {
		fmt.Fprintf(&b, "load balancer %s %s %d to %d", vip, protocols[p.Protocol], p.ExternalPort, p.InternalPort)
		if l.SourceVIP != "" {
			fmt.Fprintf(&b, " source %s", l.SourceVIP)
		}
		if flags := slices.Concat(flagNames(l.Flags, balancerFlags), flagNames(p.Flags, mappingFlags)); len(flags) > 0 {
			fmt.Fprintf(&b, " flags %s", strings.Join(flags, ","))
		}
		if name := distributionNames[p.DistributionType]; name != "" {
			fmt.Fprintf(&b, " affinity%s", name)
		}
		fmt.Fprintf(&b, "\n  on %s\n", h.endpointsText(l.HostComputeEndpoints))
	}
	return b.String()
}

func flagNames(flags uint32, names []string) (out []string) {
	for i, name := range names {
		if flags&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

func (h *HNS) endpointsText(ids []string) string {
	var out []string
	for _, id := range ids {
		if e, err := h.endpoint(id); err == nil {
			out = append(out, endpointText(e))
		} else {
			out = append(out, "nothing")
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func endpointText(e *Endpoint) string {
	where := "local"
	if e.remote() {
		where = "remote"
	}
	var addrs []string
	for _, c := range e.IpConfigurations {
		addrs = append(addrs, c.IpAddress)
	}
	return where + " " + orDash(strings.Join(addrs, ","))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func sorted[T any](list []*T, key func(*T) string) []*T {
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b *T) int { return strings.Compare(key(a), key(b)) })
	return out
}
