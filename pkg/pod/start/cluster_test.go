package start

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// learnt is a cluster DNS that becomes known while pods start.
type learnt struct {
	servers []netip.Addr
	domain  string
	waited  int
	err     error
}

func (l *learnt) Wait(context.Context) error {
	l.waited++
	return l.err
}

func (l *learnt) DNS() ([]netip.Addr, string) { return l.servers, l.domain }

// TestLearntDNS: pods use the learned DNS without a flag. Static pods, and pods that need no cluster DNS, do not wait for it.
func TestLearntDNS(t *testing.T) {
	for _, test := range []struct {
		name   string
		edit   func(*v1.Pod)
		waited int
	}{
		{"ClusterFirst", func(*v1.Pod) {}, 1},
		{"Default", func(p *v1.Pod) { p.Spec.DNSPolicy = v1.DNSDefault }, 0},
		{"Default with a name in the cluster", func(p *v1.Pod) { p.Spec.DNSPolicy, p.Spec.Subdomain = v1.DNSDefault, "db" }, 1},
		{"static", func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }, 0},
	} {
		s := newStage(t)
		known := &learnt{servers: addrs("10.7.0.10"), domain: "corp.example"}
		s.cfg.ClusterDNS, s.cfg.ClusterDomain, s.cfg.Cluster = nil, "", known
		p := stagePod(func(p *v1.Pod) { p.Spec.DNSPolicy = v1.DNSClusterFirst }, test.edit)
		in, err := s.resolver().Sandbox(t.Context(), p)
		if err != nil || known.waited != test.waited {
			t.Fatalf("%s: %v, waited %d times", test.name, err, known.waited)
		}
		cluster := p.Spec.DNSPolicy == v1.DNSClusterFirst
		if got := slices.Contains(in.DNS.Servers, "10.7.0.10") && slices.Contains(in.DNS.Searches, "shop.svc.corp.example"); got != cluster {
			t.Errorf("%s: %+v", test.name, in.DNS)
		}
		known.err = errors.New("stopped")
		if _, err := s.resolver().Sandbox(t.Context(), p); test.waited > 0 && !errors.Is(err, known.err) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestSearchesOfEachContainer: on Windows, a container that shares its sandbox's network has its own search list; on Linux it has
// resolv.conf.
func TestSearchesOfEachContainer(t *testing.T) {
	want := []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}
	for _, os := range []string{"windows", "linux"} {
		s := newStage(t)
		s.cfg.Platform.OS = os
		s.cfg.ResolvConf = ""
		p := stagePod()
		in, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], pod.Attempt{SandboxID: "box", Addresses: addrs("10.244.1.5")})
		if err != nil {
			t.Fatal(err)
		}
		if got := in.Searches; os == "windows" && !slices.Equal(got, want) || os == "linux" && got != nil {
			t.Errorf("%s: %v", os, got)
		}
	}
}
