package ipstack

import (
	"fmt"
	"net/netip"
	"strings"
)

// Names are what one container of a pod resolves names with.
type Names struct {
	// Servers are those of the endpoint, which all containers of the pod share (moby runconfig/hostconfig.go validateNetContainerMode refuses others).
	Servers []netip.Addr
	// Own is the container's search list, DNSSearchList of its document for HCS (moby daemon/oci_windows.go; microsoft/hcsshim#98).
	Own []string
	// Suffixes are the endpoint's DNSSuffix.
	Suffixes []string
	// Gateway says that Docker's own server at the network's gateway is asked first. It does so on networks of type nat (moby
	// libnetwork/drivers/windows/windows.go CreateEndpoint, EnableInternalDNS) and forwards to Servers (libnetwork/network_windows.go startResolver).
	Gateway bool
}

func (a *Answer) hop(format string, args ...any) {
	a.Hops = append(a.Hops, fmt.Sprintf(format, args...))
}

// Resolve reports whether a container gets an address for a name. exists reports which whole names the cluster's DNS server has.
func (h *Host) Resolve(n Names, name string, exists func(whole string) bool) Answer {
	a := Answer{Verdict: No}
	whole, dotted := strings.CutSuffix(name, ".")
	switch {
	case dotted:
		a.hop("%s is a whole name", whole)
	case strings.Contains(name, "."):
		// Kubernetes, "DNS for Services and Pods", DNS resolution on Windows nodes; microsoft/Windows-Containers#59.
		a.hop("a name with a dot gets no suffix")
	default:
		var found bool
		if whole, found = n.complete(&a, name, exists); !found {
			return a
		}
	}
	if !exists(whole) {
		a.hop("the cluster's DNS has no %s", whole)
		return a
	}
	return h.asksServer(n, a, whole)
}

// complete appends a suffix to a name without a dot, in the order of the search list. If found is false, the answer is final.
func (n Names) complete(a *Answer, name string, exists func(string) bool) (whole string, found bool) {
	switch {
	case len(n.Own) == 0 && len(n.Suffixes) > 0:
		// By kubernetes/kubernetes#66801 and Antrea's design, all containers have the endpoint's, by kubernetes/kubernetes#63905 the first one alone.
		a.Verdict = Unknown
		a.hop("the container has no search list: whether it has the endpoint's, sources say differently")
		return "", false
	case len(n.Own) == 0:
		a.Verdict = Unknown
		a.hop("the container has no search list: what Windows does with a name without a dot then, no source says")
		return "", false
	}
	for i, suffix := range n.Own {
		whole = name + "." + suffix
		switch {
		case !exists(whole):
			continue
		case i > 0: // Kubernetes, the same page: "you can only have 1 DNS suffix"
			a.Verdict = Unknown
			a.hop("suffix %d of the search list leads to %s: Kubernetes' documentation says that Windows has one suffix, moby passes all", i+1, whole)
			return "", false
		}
		a.hop("the search list leads to %s", whole)
		return whole, true
	}
	a.hop("the cluster's DNS has no name of the search list for %s", name)
	return "", false
}

// asksServer sends the query. Windows asks the first server, and others only if that one does not answer.
func (h *Host) asksServer(n Names, a Answer, whole string) Answer {
	if len(n.Servers) == 0 {
		a.hop("the container has no DNS server")
		return a
	}
	server := netip.AddrPortFrom(n.Servers[0], 53)
	from := Pod
	if n.Gateway {
		from = Self
		a.hop("Docker's own server at the gateway asks %s", server)
	}
	sent := h.Ask(Question{From: from, To: server, UDP: true, Service: true})
	a.Verdict, a.Hops = sent.Verdict, append(a.Hops, sent.Hops...)
	if a.Verdict == Yes {
		a.Sees = whole
	}
	return a
}
