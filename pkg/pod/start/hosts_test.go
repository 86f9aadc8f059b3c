package start

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodHostname(t *testing.T) {
	yes := true
	long := strings.Repeat("a", 62) + "-b.c"
	override := "db.example.org"
	badOverride := "Bad_"
	for _, test := range []struct {
		name               string
		pod                string
		spec               v1.PodSpec
		host, domain, full string
		err                string
	}{
		{name: "pod's name", pod: "web-0", host: "web-0", full: "web-0"},
		{name: "hostname", pod: "web-0", spec: v1.PodSpec{Hostname: "db"}, host: "db", full: "db"},
		{name: "subdomain", pod: "web-0", spec: v1.PodSpec{Subdomain: "svc"}, host: "web-0", domain: "svc.shop.svc.cluster.local", full: "web-0"},
		{name: "full name", pod: "web-0", spec: v1.PodSpec{Subdomain: "svc", SetHostnameAsFQDN: &yes}, host: "web-0", domain: "svc.shop.svc.cluster.local", full: "web-0.svc.shop.svc.cluster.local"},
		{name: "full name without a domain", pod: "web-0", spec: v1.PodSpec{SetHostnameAsFQDN: &yes}, host: "web-0", full: "web-0"},
		{name: "full name of 64", pod: "web-0", spec: v1.PodSpec{Hostname: strings.Repeat("h", 64-27), Subdomain: "svc", SetHostnameAsFQDN: &yes},
			host: strings.Repeat("h", 37), domain: "svc.shop.svc.cluster.local", full: strings.Repeat("h", 37) + ".svc.shop.svc.cluster.local"},
		{name: "full name of 65", pod: "web-0", spec: v1.PodSpec{Hostname: strings.Repeat("h", 38), Subdomain: "svc", SetHostnameAsFQDN: &yes},
			host: strings.Repeat("h", 38), domain: "svc.shop.svc.cluster.local", err: "is too long (64 characters is the max, 65 characters requested)"},
		{name: "long name", pod: long, host: strings.Repeat("a", 62), full: strings.Repeat("a", 62)},
		{name: "override", pod: "web-0", spec: v1.PodSpec{HostnameOverride: &override, Subdomain: "svc", Hostname: "x"}, host: override, full: override},
		{name: "bad override", pod: "web-0", spec: v1.PodSpec{HostnameOverride: &badOverride}, err: `pod HostnameOverride "Bad_" is not a valid DNS subdomain`},
		{name: "bad hostname", pod: "web-0", spec: v1.PodSpec{Hostname: "a.b"}, err: `pod Hostname "a.b" is not a valid DNS label`},
		{name: "bad subdomain", pod: "web-0", spec: v1.PodSpec{Subdomain: "-"}, err: `pod Subdomain "-" is not a valid DNS label`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: test.pod, Namespace: "shop"}, Spec: test.spec}
			host, domain, err := podHostname(p, "cluster.local")
			full := ""
			if err == nil {
				full, err = kernelHostname(p, host, domain)
			}
			if host != test.host || domain != test.domain || full != test.full {
				t.Errorf("got %q %q %q, want %q %q %q", host, domain, full, test.host, test.domain, test.full)
			}
			if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("got %v, want %s", err, test.err)
			}
		})
	}
}

func TestHostsFile(t *testing.T) {
	aliases := []v1.HostAlias{{IP: "10.0.0.9", Hostnames: []string{"a.example", "a"}}, {IP: "fd00::9", Hostnames: []string{"b"}}}
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	const added = "\n# Entries added by HostAliases.\n10.0.0.9\ta.example\ta\nfd00::9\tb\n"
	for _, test := range []struct{ got, want string }{
		{string(hostsFile(addrs("10.1.0.5"), "web", "", nil)), "# Kubernetes-managed hosts file.\n" + local + "10.1.0.5\tweb\n"},
		{string(hostsFile(addrs("10.1.0.5", "fd00::5"), "web", "svc.shop.svc.cluster.local", aliases)), "# Kubernetes-managed hosts file.\n" + local +
			"10.1.0.5\tweb.svc.shop.svc.cluster.local\tweb\nfd00::5\tweb.svc.shop.svc.cluster.local\tweb\n" + added},
		{string(hostsFile(nil, "web", "", nil)), "# Kubernetes-managed hosts file.\n" + local},
		{string(hostNetworkHostsFile([]byte("1.2.3.4\thost"), aliases)), "# Kubernetes-managed hosts file (host network).\n1.2.3.4\thost\n" + added},
		{string(hostNetworkHostsFile([]byte("1.2.3.4\thost\n"), nil)), "# Kubernetes-managed hosts file (host network).\n1.2.3.4\thost\n"},
		{string(hostNetworkHostsFile(nil, nil)), "# Kubernetes-managed hosts file (host network).\n"},
	} {
		if test.got != test.want {
			t.Errorf("got\n%s\nwant\n%s", test.got, test.want)
		}
	}
}
