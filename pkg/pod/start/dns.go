package start

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// Limits of the API and of C libraries (PodDNSConfig; glibc's MAXNS).
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchChars  = 2048
	maxSearchDomain = 253
)

// dockerResolver is the engine's embedded resolver. It answers only in the engine's networks and must not appear in a pod's resolv.conf.
var dockerResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// dnsInputs is what a pod's resolver configuration depends on besides its spec.
type dnsInputs struct {
	windows    bool
	servers    []netip.Addr // cluster DNS
	domain     string       // cluster domain
	host       *pod.DNS     // the host's resolv.conf; nil: the agent is configured to use none
	hostIPv6   bool         // the host has an IPv6 address
	hostIPv4   bool
	hostShared bool // the pod uses the host's network, where the host's loopback resolvers answer
}

// dnsWarning becomes an Event on the pod.
type dnsWarning struct{ reason, message string }

// podDNS decides a pod's resolver configuration from dnsPolicy and dnsConfig.
func podDNS(p *v1.Pod, in dnsInputs) (pod.DNS, []dnsWarning) {
	var dns pod.DNS
	var warnings []dnsWarning
	warn := func(reason, format string, args ...any) {
		warnings = append(warnings, dnsWarning{reason, fmt.Sprintf(format, args...)})
	}
	policy := p.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && p.Spec.HostNetwork {
		policy = v1.DNSDefault
	}
	switch policy {
	case v1.DNSNone:
	case v1.DNSDefault:
		dns = hostDNS(in, warn)
	default: // ClusterFirst, ClusterFirstWithHostNet, and static pods without a policy
		if len(in.servers) == 0 {
			warn("MissingClusterDNS", "this node has no cluster DNS address (clusterDNS), so the policy %q cannot be kept; the pod gets %q instead",
				v1.DNSClusterFirst, v1.DNSDefault)
			dns = hostDNS(in, warn)
			break
		}
		for _, s := range in.servers {
			dns.Servers = append(dns.Servers, s.String())
		}
		if in.domain != "" {
			dns.Searches = []string{p.Namespace + ".svc." + in.domain, "svc." + in.domain, in.domain}
		}
		if in.host != nil {
			dns.Searches = unique(append(dns.Searches, in.host.Searches...))
		}
		dns.Options = []string{"ndots:5"}
	}
	if c := p.Spec.DNSConfig; c != nil {
		dns.Servers = unique(append(slices.Clone(dns.Servers), c.Nameservers...))
		dns.Searches = unique(append(slices.Clone(dns.Searches), c.Searches...))
		for _, o := range c.Options {
			option := o.Name
			if o.Value != nil && *o.Value != "" {
				option += ":" + *o.Value
			}
			dns.Options = setOption(dns.Options, option)
		}
	}
	limitDNS(&dns, warn)
	return dns, warnings
}

// hostDNS is the result of the policy Default: the host's configuration, without the servers that do not work in the pod.
func hostDNS(in dnsInputs, warn func(reason, format string, args ...any)) pod.DNS {
	if in.host == nil {
		if in.windows {
			return pod.DNS{} // the engine then uses the servers of the host's adapters
		}
		// Upstream treats an empty resolver path as "no name resolution": queries go to the local machine, where nothing answers.
		dns := pod.DNS{Searches: []string{"."}}
		if in.hostIPv4 || !in.hostIPv6 {
			dns.Servers = append(dns.Servers, "127.0.0.1")
		}
		if in.hostIPv6 {
			dns.Servers = append(dns.Servers, "::1")
		}
		return dns
	}
	dns := pod.DNS{Searches: slices.Clone(in.host.Searches), Options: slices.Clone(in.host.Options)}
	dns.Servers = usableServers(in.host.Servers, in.hostShared)
	if len(dns.Servers) == 0 && len(in.host.Servers) > 0 {
		warn("DNSConfigForming", "the host's resolver configuration names only addresses that do not answer in a pod (%s); give the agent a file with reachable servers (resolvConf)",
			strings.Join(in.host.Servers, " "))
	}
	return dns
}

// usableServers drops the engine's resolver, and also loopback addresses unless the pod shares the host's network.
func usableServers(servers []string, hostShared bool) []string {
	var out []string
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err == nil && (ip.Unmap() == dockerResolver || (ip.Unmap().IsLoopback() && !hostShared)) {
			continue
		}
		out = append(out, s)
	}
	return out
}

func limitDNS(dns *pod.DNS, warn func(reason, format string, args ...any)) {
	if len(dns.Servers) > maxNameservers {
		dns.Servers = dns.Servers[:maxNameservers]
		warn("DNSConfigForming", "resolvers support at most %d nameservers; the pod gets: %s", maxNameservers, strings.Join(dns.Servers, " "))
	}
	var kept []string
	chars := 0
	cut := false
	for i, s := range dns.Searches {
		if len(s) > maxSearchDomain { // some C libraries abort on longer ones
			cut = true
			continue
		}
		if i >= maxSearches || chars+len(s) > maxSearchChars {
			cut = true
			break
		}
		kept = append(kept, s)
		chars += len(s) + 1
	}
	dns.Searches = kept
	if cut {
		warn("DNSConfigForming", "resolvers support at most %d search domains, %d characters each and %d in all; the pod gets: %s",
			maxSearches, maxSearchDomain, maxSearchChars, strings.Join(kept, " "))
	}
}

// setOption adds an option of resolv.conf or replaces the one with the same name.
func setOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, o := range options {
		if n, _, _ := strings.Cut(o, ":"); n == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

func unique(words []string) []string {
	seen := make(map[string]bool, len(words))
	return slices.DeleteFunc(words, func(w string) bool {
		dup := seen[w]
		seen[w] = true
		return dup
	})
}

// parseResolvConf reads resolv.conf(5). Like C libraries, it skips unknown and incomplete lines.
func parseResolvConf(text string) pod.DNS {
	var dns pod.DNS
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0][0] == '#' || fields[0][0] == ';' {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Servers = append(dns.Servers, fields[1])
		case "domain", "search": // the last of both wins
			dns.Searches = nil
			for _, s := range fields[1:] {
				if s = strings.TrimSuffix(s, "."); s != "" {
					dns.Searches = append(dns.Searches, s)
				}
			}
		case "options":
			for _, o := range fields[1:] {
				dns.Options = setOption(dns.Options, o)
			}
		}
	}
	return dns
}

// resolvConf prints dns as resolv.conf(5).
func resolvConf(dns pod.DNS) []byte {
	var b strings.Builder
	if len(dns.Searches) > 0 {
		b.WriteString("search " + strings.Join(dns.Searches, " ") + "\n")
	}
	for _, s := range dns.Servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(dns.Options) > 0 {
		b.WriteString("options " + strings.Join(dns.Options, " ") + "\n")
	}
	return []byte(b.String())
}
