package learn

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/quick"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/report"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func service(namespace, name string, ips ...string) *v1.Service {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec.Ports = []v1.ServicePort{{Port: 53}}
	if len(ips) > 0 {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips
	}
	return s
}

func TestRanges(t *testing.T) {
	for _, test := range []struct {
		first string
		all   []netip.Addr
		want  string
	}{
		{"10.96.0.1", nil, "10.96.0.0/31"},
		{"10.96.0.1", addrs("10.96.0.1", "10.96.0.10"), "10.96.0.0/28"},
		{"10.96.0.1", addrs("10.96.0.10", "10.99.200.3"), "10.96.0.0/14"},
		{"10.96.0.1", addrs("10.111.255.254", "10.97.0.1"), "10.96.0.0/12"},
		{"10.96.0.1", addrs("10.112.0.1"), "10.96.0.0/31, 10.112.0.1/32"}, // second ServiceCIDR: no first range is wider than 20 bits
		{"10.0.0.1", addrs("10.0.0.10", "10.16.0.1", "10.16.0.9"), "10.0.0.0/28, 10.16.0.0/28"},
		{"10.96.0.1", addrs("10.96.0.10", "fd00::5", "fd00::a3"), "10.96.0.0/28, fd00::/120"},
		{"fd00::1", addrs("fd00::1", "fd00::ff"), "fd00::/120"},
		{"", addrs("10.96.0.10", "192.168.0.1"), "10.96.0.10/32, 192.168.0.1/32"},
		{"", nil, ""},
	} {
		var first netip.Addr
		if test.first != "" {
			first = netip.MustParseAddr(test.first)
		}
		if got := join(Ranges(first, test.all)); got != test.want {
			t.Errorf("%s with %v: %s, want %s", test.first, test.all, got, test.want)
		}
	}
}

// The ranges derived from addresses of one range contain each address, and no address outside of that range.
func TestRangesStayInside(t *testing.T) {
	check := func(bits uint8, offsets []uint32) bool {
		length := 12 + int(bits)%17
		of := netip.PrefixFrom(netip.MustParseAddr("10.96.0.0"), length)
		all := []netip.Addr{of.Addr().Next()}
		for _, o := range offsets {
			o %= 1 << (32 - length)
			all = append(all, netip.AddrFrom4([4]byte{10, 96 + byte(o>>16), byte(o >> 8), byte(o)}))
		}
		got := Ranges(all[0], all)
		for _, a := range all {
			if !slices.ContainsFunc(got, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return false
			}
		}
		return len(got) == 1 && got[0].Bits() >= length && of.Contains(got[0].Addr())
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

func TestMerge(t *testing.T) {
	got := Merge(prefixes("10.244.3.0/24", "10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.2.0/25", "10.244.5.0/24", "10.244.6.0/24"))
	if join(got) != "10.244.0.0/22, 10.244.5.0/24, 10.244.6.0/24" {
		t.Errorf("%v", got)
	}
}

func TestDecide(t *testing.T) {
	labelled := service("kube-system", "coredns", "10.96.0.20")
	labelled.Labels = map[string]string{dnsLabel: dnsName}
	all := []*v1.Service{service("default", "kubernetes", "10.96.0.1"), labelled, service("kube-system", "kube-dns", "10.96.0.10"), service("a", "headless", "None")}
	for _, test := range []struct {
		name  string
		flags Flags
		seen  Seen
		want  []string
		fixes int
	}{
		{"nothing", Flags{}, Seen{}, []string{
			"ranges of Services: unknown: the cluster has no Service with a cluster IP",
			"ranges of pods: unknown: no proxy reports them; using the private range around this Node's own",
			"cluster DNS: unknown: there is no Service kube-system/kube-dns, and none there with the label k8s-app=kube-dns",
			"cluster domain: cluster.local, from a guess: the cluster DNS did not answer"}, 3},
		{"nothing on Linux", Flags{Doctor: true}, Seen{}, []string{"", "", "", "", "back end of Services: unknown: no proxy of this program reports it"}, 3},
		{"nothing on Windows", Flags{Doctor: true, Windows: true}, Seen{}, []string{"", "ranges of pods: unknown: no proxy reports them; using the private range around this Node's own", "", "",
			"back end of Services: unknown: no proxy of this program reports it"}, 5},
		{"a network of others on Windows", Flags{Doctor: true, Windows: true, NoRanges: true}, Seen{Services: all, Domain: "x", Reported: report.Facts{Serving: report.Serving{BackEnd: "relay", BackEndFrom: "the default of build 20348",
			Interface: "vEthernet (x)", InterfaceFrom: "INTERFACE_TO_ADD_SERVICE_IP"}}}, []string{"", "ranges of pods: unknown: no proxy reports them; using the private range around this Node's own", "", "",
			"back end of Services: relay, from the default of build 20348", "interface of Service addresses: vEthernet (x), from INTERFACE_TO_ADD_SERVICE_IP"}, 0},
		{"the first Node on Windows", Flags{Doctor: true, Windows: true}, Seen{Services: all, Domain: "x", Reported: report.Facts{Routes: true, Serving: report.Serving{BackEnd: "hnslb", BackEndFrom: "--proxy-mode=kernelspace",
			DSR: "off", DSRFrom: "the default", Interface: "vEthernet (KubeProxySwitch)", InterfaceFrom: "the switch that the proxy makes"}}}, []string{"", "ranges of pods: only this Node's own, from the Nodes, which the proxy reports", "", "",
			"back end of Services: hnslb, from --proxy-mode=kernelspace", "direct server return: off, from the default", "interface of Service addresses: vEthernet (KubeProxySwitch), from the switch that the proxy makes"}, 0},
		{"Services", Flags{}, Seen{Services: all, Domain: "corp.example"}, []string{
			"ranges of Services: 10.96.0.0/27, from the cluster IPs of its Services", "ranges of pods: unknown: no proxy reports them; using the private range around this Node's own",
			"cluster DNS: 10.96.0.10, from the Service kube-system/kube-dns", "cluster domain: corp.example, from the name that the cluster DNS has for 10.96.0.1"}, 0},
		{"a report", Flags{}, Seen{Services: all[:2], Reported: report.Facts{Services: prefixes("10.96.0.0/12"), Pods: prefixes("10.244.0.0/22")}, Domain: "x"}, []string{
			"ranges of Services: 10.96.0.0/12, from the cluster's ServiceCIDRs, which the proxy reports", "ranges of pods: 10.244.0.0/22, from the Nodes, which the proxy reports",
			"cluster DNS: 10.96.0.20, from the Service kube-system/coredns", "cluster domain: x, from the name that the cluster DNS has for 10.96.0.1"}, 0},
		{"a report of another cluster", Flags{Domain: "x"}, Seen{Services: all, Reported: report.Facts{Services: prefixes("172.30.0.0/16")}}, []string{
			"ranges of Services: 10.96.0.0/27, from the cluster IPs of its Services", "", "", "cluster domain: x, from --cluster-domain"}, 0},
		{"flags", Flags{Services: prefixes("10.96.1.2/16"), Pods: prefixes("10.0.0.0/8"), DNS: addrs("169.254.20.10"), Domain: "y"}, Seen{Services: all, Domain: "corp.example",
			Reported: report.Facts{Services: prefixes("10.96.0.0/12"), Pods: prefixes("10.244.0.0/22")}}, []string{
			"ranges of Services: 10.96.0.0/16, from --service-cidr", "ranges of pods: 10.0.0.0/8, from --cluster-cidr",
			"cluster DNS: 169.254.20.10, from --cluster-dns", "cluster domain: y, from --cluster-domain"}, 0},
	} {
		k, fixes := Decide(test.flags, test.seen), 0
		for i, line := range k.Lines {
			if i < len(test.want) && test.want[i] != "" && line.String() != test.want[i] {
				t.Errorf("%s: %s, want %s", test.name, line, test.want[i])
			}
			if line.Fix != "" {
				fixes++
			}
		}
		if len(k.Lines) < len(test.want) {
			t.Errorf("%s: %v, want %q", test.name, k.Lines, test.want)
		}
		if fixes != test.fixes {
			t.Errorf("%s: %d lines are faults, want %d", test.name, fixes, test.fixes)
		}
	}
}

// world is the sources of a Cluster, in memory.
type world struct {
	mu       sync.Mutex
	services []*v1.Service
	unread   error
	facts    report.Facts
	looked   chan struct{} // gets a value when the Services are read; nil: nothing waits for that
	changed  chan func()
	answers  chan answer
}

type answer struct {
	domain string
	err    error
}

func (w *world) all() ([]*v1.Service, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.looked <- struct{}{}:
	default:
	}
	return w.services, w.unread
}

func (w *world) Read() (report.Facts, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.facts, nil
}

func (w *world) Watch(ctx context.Context, changed func()) error {
	w.changed <- changed
	<-ctx.Done()
	return nil
}

func (w *world) ask(ctx context.Context, _, _ netip.Addr) (string, error) {
	select {
	case a := <-w.answers:
		return a.domain, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (w *world) set(services []*v1.Service, facts report.Facts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.services, w.unread, w.facts = services, nil, facts
}

// TestCluster: nothing is known before Services are read; events deliver later changes; queries to a DNS without an answer are repeated,
// and pods wait only for its first answer.
func TestCluster(t *testing.T) {
	w := &world{unread: errors.New("not read yet"), looked: make(chan struct{}, 1), changed: make(chan func(), 1), answers: make(chan answer)}
	clock := testclock.NewFakeClock(time.Unix(1000, 0))
	c := New(Flags{}, Parts{Services: w.all, Reports: w, Ask: w.ask, Clock: clock})
	changes := make(chan struct{}, 100)
	c.OnChange(func() { changes <- struct{}{} })
	until := func(so func() bool) {
		for !so() {
			<-changes
		}
	}
	isRange := func(want string) func() bool {
		return func() bool { got, _, _ := c.Ranges(); return join(got) == want }
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	reported := <-w.changed
	<-w.looked // or Kick would cause a second look, which asks before the clock moves
	if _, _, read := c.Ranges(); read {
		t.Error("known before Services were read")
	}
	kubernetes, dns := service("default", "kubernetes", "10.96.0.1"), service("kube-system", "kube-dns", "10.96.0.10")
	w.set([]*v1.Service{kubernetes, dns}, report.Facts{})
	c.Kick()
	<-changes
	if got, _, read := c.Ranges(); read || join(got) != "10.96.0.0/28" { // the proxy may still report the whole range
		t.Errorf("%v, %t", got, read)
	}
	early, stop := context.WithCancelCause(t.Context())
	stop(errors.New("enough"))
	if err := c.Wait(early); err == nil || err.Error() != "enough" {
		t.Errorf("waited for an answer: %v", err)
	}
	w.answers <- answer{err: errors.New("no way to it")}
	if err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if servers, domain := c.DNS(); !slices.Equal(servers, addrs("10.96.0.10")) || domain != "cluster.local" {
		t.Errorf("%v, %q", servers, domain)
	}
	for answered := false; !answered; { // the timer may not be set yet
		select {
		case w.answers <- answer{domain: "corp.example"}:
			answered = true
		case <-time.After(time.Millisecond):
			clock.Step(lastRetry)
		}
	}
	until(func() bool { _, domain := c.DNS(); return domain == "corp.example" })
	until(func() bool { _, _, read := c.Ranges(); return read }) // ranges do not wait for a proxy that reports nothing
	if _, domain := c.DNS(); domain != "corp.example" {
		t.Errorf("%q", domain)
	}
	w.set([]*v1.Service{kubernetes, dns}, report.Facts{Services: prefixes("10.96.0.0/12")})
	reported()
	until(isRange("10.96.0.0/12"))
	c.Service(service("shop", "web", "10.100.0.1"), false)
	if len(c.news) > 0 {
		t.Error("a Service within the ranges was news")
	}
	c.Service(service("shop", "far", "172.30.0.1"), false)
	moved := service("kube-system", "kube-dns", "10.96.0.53")
	w.set([]*v1.Service{kubernetes, moved}, report.Facts{Services: prefixes("10.96.0.0/12", "172.30.0.0/16")})
	c.Service(moved, false)
	until(isRange("10.96.0.0/12, 172.30.0.0/16"))
	w.answers <- answer{domain: "corp.example"} // another server is queried
	if servers, _ := c.DNS(); !slices.Equal(servers, addrs("10.96.0.53")) {
		t.Errorf("%v", servers)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFlagsNeedNoWait: with both flags set, nothing waits.
func TestFlagsNeedNoWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := New(Flags{DNS: addrs("10.96.0.10"), Domain: "x"}, Parts{})
	if err := c.Wait(ctx); err != nil {
		t.Error(err)
	}
	if servers, domain := c.DNS(); len(servers) != 1 || domain != "x" {
		t.Errorf("%v, %q", servers, domain)
	}
	if !strings.Contains(c.known.Lines[0].String(), "unknown") {
		t.Errorf("%v", c.known.Lines)
	}
}
