// Package learn derives what administrators otherwise set with flags: the ranges of Service addresses, the cluster's DNS servers and its
// domain.
//
//	Services, the proxy's report, an answer of the cluster DNS --Cluster gathers--> Seen --Decide--> Known --> pod network, DNS of pods, log, doctor
//
// Decide is pure. Flags override learned values. In the kubelet, Cluster keeps what is Known up to date. The proxy reads ServiceCIDRs
// itself (package proxy) and shares Ranges if it may not read them.
package learn

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/report"
)

// Flags are the administrator's settings. A zero field is learned.
type Flags struct {
	Services []netip.Prefix // --service-cidr
	Pods     []netip.Prefix // --cluster-cidr
	DNS      []netip.Addr   // --cluster-dns
	Domain   string         // --cluster-domain
	// Doctor adds lines about the proxy.
	Doctor bool
	// Windows says that what the proxy did not report is a fault: pods' networks there depend on it.
	Windows bool
	// NoRanges says that this host's network does not depend on the ranges of pods, as with --network-mode=cni and external.
	NoRanges bool
}

// Seen is what a kubelet can see of its cluster.
type Seen struct {
	Services []*v1.Service // all
	Reported report.Facts  // by the proxy of this host
	Domain   string        // from the cluster DNS; "": no answer
}

// Known is what is known of the cluster.
type Known struct {
	Services []netip.Prefix // ranges of Service addresses, sorted; none: unknown
	Pods     []netip.Prefix // ranges of pods, sorted; none: unknown
	DNS      []netip.Addr   // none: the cluster has no DNS Service
	Domain   string         // never ""
	// APIServer is the address of the API server's Service; invalid: there is none.
	APIServer netip.Addr
	Lines     []Line
}

// Line describes one known fact and its source.
type Line struct {
	What, Value, From string
	Fix               string // what to do about it; "": nothing is missing
}

// String formats the line for doctor.
func (l Line) String() string {
	if l.Value == "" {
		return fmt.Sprintf("%s: unknown: %s", l.What, l.From)
	}
	return fmt.Sprintf("%s: %s, from %s", l.What, l.Value, l.From)
}

const (
	dnsName  = "kube-dns" // of the Service, and of its label k8s-app: a name that CoreDNS inherited
	dnsLabel = "k8s-app"
	dnsPort  = 53
	// usualDomain is the cluster's domain unless an administrator chose another.
	usualDomain = "cluster.local"
)

// Decide derives what is known. It is pure.
func Decide(flags Flags, seen Seen) Known {
	k := Known{APIServer: apiServer(seen.Services)}
	for _, decide := range []func(Flags, Seen, *Known) Line{serviceRanges, podRanges, dnsServers, domain} {
		k.Lines = append(k.Lines, decide(flags, seen, &k))
	}
	if flags.Doctor {
		k.Lines = append(k.Lines, serving(flags, seen.Reported.Serving)...)
	}
	return k
}

// serviceRanges ignores a report that does not contain the API server's own Service: the file may be from another cluster.
func serviceRanges(flags Flags, seen Seen, k *Known) Line {
	line := Line{What: "ranges of Services"}
	reported := seen.Reported.Services
	stale := len(reported) > 0 && k.APIServer.IsValid() && !slices.ContainsFunc(reported, func(p netip.Prefix) bool { return p.Contains(k.APIServer) })
	switch {
	case len(flags.Services) > 0:
		k.Services, line.From = sorted(flags.Services), "--service-cidr"
	case len(reported) > 0 && !stale:
		k.Services, line.From = sorted(reported), "the cluster's ServiceCIDRs, which the proxy reports"
	default:
		k.Services, line.From = Ranges(k.APIServer, clusterIPs(seen.Services)), "the cluster IPs of its Services"
	}
	if line.Value = join(k.Services); line.Value == "" {
		line.From = "the cluster has no Service with a cluster IP"
		line.Fix = "kubectl get service kubernetes; else give --service-cidr"
	}
	return line
}

func podRanges(flags Flags, seen Seen, k *Known) Line {
	line := Line{What: "ranges of pods"}
	k.Pods, line.From = sorted(seen.Reported.Pods), "the Nodes, which the proxy reports"
	if len(flags.Pods) > 0 {
		k.Pods, line.From = sorted(flags.Pods), "--cluster-cidr"
	}
	line.Value = join(k.Pods)
	switch {
	case line.Value != "":
	case seen.Reported.Routes:
		line.Value = "only this Node's own"
	default:
		line.From = "no proxy reports them; using the private range around this Node's own"
		if flags.Windows && !flags.NoRanges {
			line.Fix = "give --cluster-cidr; the proxy reports them with --network-mode=host-gateway and overlay (Get-EventLog Application -Source kube-proxy -Newest 5)"
		}
	}
	return line
}

// serving says how the proxy serves Services.
func serving(flags Flags, s report.Serving) []Line {
	const what = "back end of Services"
	if s.BackEnd == "" {
		line := Line{What: what, From: "no proxy of this program reports it"}
		if flags.Windows {
			line.Fix = "C:\\k\\proxy.exe service status; it does not matter if another proxy serves this Node"
		}
		return []Line{line}
	}
	out := []Line{{What: what, Value: s.BackEnd, From: s.BackEndFrom}}
	if s.DSR != "" {
		out = append(out, Line{What: "direct server return", Value: s.DSR, From: s.DSRFrom})
	}
	return append(out, Line{What: "interface of Service addresses", Value: s.Interface, From: s.InterfaceFrom})
}

func dnsServers(flags Flags, seen Seen, k *Known) Line {
	line := Line{What: "cluster DNS"}
	if len(flags.DNS) > 0 {
		k.DNS, line.From = flags.DNS, "--cluster-dns"
	} else if s := dnsService(seen.Services); s != nil {
		k.DNS, line.From = addresses(s), fmt.Sprintf("the Service %s/%s", s.Namespace, s.Name)
	} else {
		line.From = fmt.Sprintf("there is no Service %s/%s, and none there with the label %s=%s", metav1.NamespaceSystem, dnsName, dnsLabel, dnsName)
		line.Fix = "install CoreDNS; else give --cluster-dns"
	}
	var texts []string
	for _, a := range k.DNS {
		texts = append(texts, a.String())
	}
	line.Value = strings.Join(texts, ", ")
	return line
}

func domain(flags Flags, seen Seen, k *Known) Line {
	line := Line{What: "cluster domain"}
	switch {
	case flags.Domain != "":
		k.Domain, line.From = flags.Domain, "--cluster-domain"
	case seen.Domain != "":
		k.Domain, line.From = seen.Domain, fmt.Sprintf("the name that the cluster DNS has for %s", k.APIServer)
	default:
		k.Domain, line.From = usualDomain, "a guess: the cluster DNS did not answer"
		line.Fix = "kubectl -n kube-system get pods -l k8s-app=kube-dns; else give --cluster-domain"
	}
	line.Value = k.Domain
	return line
}

// dnsService is the Service of the cluster's DNS: the one with the usual name, or else the first with the label.
func dnsService(all []*v1.Service) *v1.Service {
	var found *v1.Service
	for _, s := range all {
		if !isDNS(s) || len(addresses(s)) == 0 || !slices.ContainsFunc(s.Spec.Ports, func(p v1.ServicePort) bool { return p.Port == dnsPort }) {
			continue
		}
		if found == nil || cmp.Or(-cmp.Compare(rank(s), rank(found)), cmp.Compare(s.Name, found.Name)) < 0 {
			found = s
		}
	}
	return found
}

func isDNS(s *v1.Service) bool {
	return s.Namespace == metav1.NamespaceSystem && (s.Name == dnsName || s.Labels[dnsLabel] == dnsName)
}

func rank(s *v1.Service) int {
	if s.Name == dnsName {
		return 1
	}
	return 0
}

func isAPIServer(s *v1.Service) bool {
	return s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
}

func apiServer(all []*v1.Service) netip.Addr {
	for _, s := range all {
		if own := addresses(s); isAPIServer(s) && len(own) > 0 {
			return own[0]
		}
	}
	return netip.Addr{}
}

// addresses are a Service's cluster IPs; none if it is headless or has none yet.
func addresses(s *v1.Service) (out []netip.Addr) {
	list := s.Spec.ClusterIPs
	if len(list) == 0 {
		list = []string{s.Spec.ClusterIP}
	}
	for _, text := range list {
		if addr, err := netip.ParseAddr(text); err == nil {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

func clusterIPs(all []*v1.Service) (out []netip.Addr) {
	for _, s := range all {
		out = append(out, addresses(s)...)
	}
	return out
}

func sorted(list []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, p := range list {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

func join(list []netip.Prefix) string {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}
