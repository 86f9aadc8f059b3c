package start

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
)

func TestParseResolvConf(t *testing.T) {
	for _, test := range []struct {
		text string
		want pod.DNS
	}{
		{"", pod.DNS{}},
		{"nameserver 1.1.1.1\nnameserver\t2.2.2.2 # two\n", pod.DNS{Servers: []string{"1.1.1.1", "2.2.2.2"}}},
		{"# nameserver 9.9.9.9\n; nameserver 9.9.9.9\n#nameserver 9.9.9.9\n\n  nameserver fe80::1%eth0\r\n", pod.DNS{Servers: []string{"fe80::1%eth0"}}},
		{"search a.example b.example. .\n", pod.DNS{Searches: []string{"a.example", "b.example"}}},
		{"search a.example\nsearch b.example\n", pod.DNS{Searches: []string{"b.example"}}},
		{"search a.example\ndomain b.example\n", pod.DNS{Searches: []string{"b.example"}}},
		{"options ndots:2 rotate\noptions ndots:3 timeout:1\n", pod.DNS{Options: []string{"ndots:3", "rotate", "timeout:1"}}},
		{"nameserver\nsearch\noptions\nsortlist 1.2.3.4\nlookup file\n", pod.DNS{}},
	} {
		if got := parseResolvConf(test.text); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q: got %+v, want %+v", test.text, got, test.want)
		}
	}
}

func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a b.\noptions ndots:5 rotate\n")
	f.Add("#\n;\n\x00nameserver\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		first := parseResolvConf(text)
		for _, words := range [][]string{first.Servers, first.Searches, first.Options} {
			for _, w := range words {
				if w == "" || strings.ContainsAny(w, " \n\t") {
					t.Errorf("%q is no single word", w)
				}
			}
		}
		printed := string(resolvConf(first))
		if strings.Contains(printed, "..") || strings.Contains(text, ".") { // a trailing dot is dropped, one per parse
			return
		}
		if again := parseResolvConf(printed); !reflect.DeepEqual(again, first) {
			t.Errorf("%+v was printed as %q and read as %+v", first, printed, again)
		}
	})
}

func dnsPod(policy v1.DNSPolicy, hostNetwork bool, config *v1.PodDNSConfig) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1.PodSpec{DNSPolicy: policy, HostNetwork: hostNetwork, DNSConfig: config}}
}

func many(n int, format string) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}

func TestPodDNS(t *testing.T) {
	cluster := addrs("10.96.0.10")
	host := func(text string) *pod.DNS { d := parseResolvConf(text); return &d }
	usual := host("nameserver 192.168.0.53\nsearch corp.example\noptions timeout:1\n")
	two := "2"
	const searches = "search shop.svc.cluster.local svc.cluster.local cluster.local"
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		in   dnsInputs
		want string // resolv.conf, lines joined by |
		warn string
	}{
		{name: "cluster first", pod: dnsPod(v1.DNSClusterFirst, false, nil), in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual},
			want: searches + " corp.example|nameserver 10.96.0.10|options ndots:5|"},
		{name: "policy not set", pod: dnsPod("", false, nil), in: dnsInputs{servers: cluster, domain: "cluster.local"},
			want: searches + "|nameserver 10.96.0.10|options ndots:5|"},
		{name: "domain twice", pod: dnsPod("", false, nil), in: dnsInputs{servers: cluster, domain: "cluster.local", host: host("search cluster.local")},
			want: searches + "|nameserver 10.96.0.10|options ndots:5|"},
		{name: "no cluster domain", pod: dnsPod("", false, nil), in: dnsInputs{servers: cluster, host: usual},
			want: "search corp.example|nameserver 10.96.0.10|options ndots:5|"},
		{name: "cluster first in the host's network", pod: dnsPod(v1.DNSClusterFirst, true, nil), in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual, hostShared: true},
			want: "search corp.example|nameserver 192.168.0.53|options timeout:1|"},
		{name: "cluster first with host net", pod: dnsPod(v1.DNSClusterFirstWithHostNet, true, nil), in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual, hostShared: true},
			want: searches + " corp.example|nameserver 10.96.0.10|options ndots:5|"},
		{name: "no cluster DNS", pod: dnsPod(v1.DNSClusterFirst, false, nil), in: dnsInputs{host: usual},
			want: "search corp.example|nameserver 192.168.0.53|options timeout:1|", warn: "MissingClusterDNS"},
		{name: "default", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual},
			want: "search corp.example|nameserver 192.168.0.53|options timeout:1|"},
		{name: "default without a file", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{hostIPv4: true}, want: "search .|nameserver 127.0.0.1|"},
		{name: "default without a file, dual stack", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{hostIPv4: true, hostIPv6: true}, want: "search .|nameserver 127.0.0.1|nameserver ::1|"},
		{name: "default without a file, IPv6", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{hostIPv6: true}, want: "search .|nameserver ::1|"},
		{name: "default without a file on Windows", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{windows: true}, want: ""},
		{name: "none", pod: dnsPod(v1.DNSNone, false, nil), in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual}, want: ""},
		{
			name: "none and config", in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual},
			pod:  dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"x.example"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}),
			want: "search x.example|nameserver 1.1.1.1|options ndots:2 edns0|",
		},
		{
			name: "config is added and options are replaced", in: dnsInputs{servers: cluster, domain: "cluster.local", host: usual},
			pod:  dnsPod("", false, &v1.PodDNSConfig{Nameservers: []string{"10.96.0.10", "1.1.1.1"}, Searches: []string{"corp.example", "x.example"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}}}),
			want: searches + " corp.example x.example|nameserver 10.96.0.10|nameserver 1.1.1.1|options ndots:2|",
		},
		{name: "loopback resolvers of the host", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{host: host("nameserver 127.0.0.53\nnameserver ::1\nnameserver 1.1.1.1")}, want: "nameserver 1.1.1.1|"},
		{name: "loopback resolvers in the host's network", pod: dnsPod(v1.DNSDefault, true, nil), in: dnsInputs{host: host("nameserver 127.0.0.53"), hostShared: true}, want: "nameserver 127.0.0.53|"},
		{name: "the engine's resolver", pod: dnsPod(v1.DNSDefault, true, nil), in: dnsInputs{host: host("nameserver 127.0.0.11\nnameserver ::ffff:127.0.0.11"), hostShared: true}, want: "", warn: "DNSConfigForming"},
		{name: "nothing usable", pod: dnsPod(v1.DNSDefault, false, nil), in: dnsInputs{host: host("nameserver 127.0.0.1\nsearch a")}, want: "search a|", warn: "DNSConfigForming"},
		{name: "a pod's own loopback resolver", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}}), want: "nameserver 127.0.0.1|"},
		{name: "too many servers", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: many(4, "1.1.1.%d")}), want: "nameserver 1.1.1.0|nameserver 1.1.1.1|nameserver 1.1.1.2|", warn: "DNSConfigForming"},
		{name: "32 domains", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Searches: many(32, "d%02d")}), want: "search " + strings.Join(many(32, "d%02d"), " ") + "|"},
		{name: "33 domains", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Searches: many(33, "d%02d")}), want: "search " + strings.Join(many(32, "d%02d"), " ") + "|", warn: "DNSConfigForming"},
		{name: "a domain that is too long", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Searches: []string{"a", strings.Repeat("x", 254), "b"}}), want: "search a b|", warn: "DNSConfigForming"},
		{name: "2048 characters", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Searches: append(many(10, strings.Repeat("x", 201)+"%02d"), strings.Repeat("y", 8))}),
			want: "search " + strings.Join(many(10, strings.Repeat("x", 201)+"%02d"), " ") + " yyyyyyyy|"},
		{name: "2049 characters", pod: dnsPod(v1.DNSNone, false, &v1.PodDNSConfig{Searches: append(many(10, strings.Repeat("x", 201)+"%02d"), strings.Repeat("y", 9))}),
			want: "search " + strings.Join(many(10, strings.Repeat("x", 201)+"%02d"), " ") + "|", warn: "DNSConfigForming"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dns, warnings := podDNS(test.pod, test.in)
			if got := strings.ReplaceAll(string(resolvConf(dns)), "\n", "|"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			var reasons []string
			for _, w := range warnings {
				reasons = append(reasons, w.reason)
			}
			if got := strings.Join(reasons, " "); got != test.warn {
				t.Errorf("warned of %q, want %q", got, test.warn)
			}
		})
	}
}

func TestPodDNSLeavesItsInputAlone(t *testing.T) {
	host := &pod.DNS{Servers: []string{"1.1.1.1"}, Searches: make([]string, 1, 9), Options: append(make([]string, 0, 9), "ndots:1")}
	host.Searches[0] = "a"
	five := "5"
	for range 2 {
		podDNS(dnsPod(v1.DNSDefault, false, &v1.PodDNSConfig{Searches: []string{"b"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &five}}}), dnsInputs{host: host})
	}
	if want := (pod.DNS{Servers: []string{"1.1.1.1"}, Searches: []string{"a"}, Options: []string{"ndots:1"}}); !reflect.DeepEqual(*host, want) {
		t.Errorf("the host's configuration became %+v", *host)
	}
}
