package podlink

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s differs (%v); -update writes it:\n%s", path, err, got)
	}
}

func rangeOf(subnet string) Range {
	p := netip.MustParsePrefix(subnet)
	return Range{Subnet: p, Gateway: p.Addr().Next()}
}

func networkOf(subnets ...string) Network {
	n := Network{Bridge: "winkube0", MTU: 1450}
	for _, s := range subnets {
		n.Ranges = append(n.Ranges, rangeOf(s))
	}
	return n
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

const container = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestSteps(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name    string
		network Network
		addrs   []netip.Addr
		sysctls map[string]string
	}{
		{"IPv4", networkOf("10.244.1.0/24"), addrs("10.244.1.7"), nil},
		{"both families", networkOf("10.244.1.0/24", "fd00:1::/64"), addrs("10.244.1.7", "fd00:1::7"), map[string]string{"net/ipv4/conf/eth0/forwarding": "1"}},
		{"IPv6", networkOf("fd00:1::/64"), addrs("fd00:1::a:7"), nil},
	} {
		fmt.Fprintf(&b, "%s\n", c.name)
		for _, s := range Steps(c.network, Record{Container: container, Netns: "/proc/12/ns/net", Addrs: c.addrs}, c.sysctls) {
			fmt.Fprintf(&b, "  %s\n", s)
		}
	}
	golden(t, "steps", b.String())
}

func TestAlias(t *testing.T) {
	want := Record{Container: container, Netns: "/proc/4194304/ns/net", Addrs: addrs("10.244.255.254", "fd00:1111:2222:3333:4444:5555:6666:7777")}
	got, ok := ParseAlias(want.Alias())
	if !ok || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := len(want.Alias()); n > 255 {
		t.Errorf("the kernel keeps 255 bytes, the alias has %d", n)
	}
	for _, alias := range []string{"", "winkube", "winkube a b c", "winkube  /proc/1/ns/net 10.0.0.1", "other a b 10.0.0.1", "winkube a b 10.0.0.1 c", "winkube a b "} {
		if r, ok := ParseAlias(alias); ok {
			t.Errorf("%q is %v", alias, r)
		}
	}
}

func TestPortNames(t *testing.T) {
	if got := PortName(container); got != "wkp0123456789ab" || len(got) > 15 {
		t.Error(got)
	}
	for name, want := range map[string]bool{"wkp0123456789ab": true, "wkp0": false, "wkp0123456789ax": false, "veth0123456789a": false, "wkp0123456789abc": false, "": false} {
		if IsPort(name) != want {
			t.Errorf("%q: want %t", name, want)
		}
	}
}

func TestCompare(t *testing.T) {
	n, alias := networkOf("10.244.1.0/24"), Record{container, "/proc/1/ns/net", addrs("10.244.1.2")}.Alias()
	for name, c := range map[string]struct {
		port Port
		want string
	}{
		"right":           {Port{Name: "p", Alias: alias, Bridge: "winkube0", Up: true, Hairpin: true}, "[]"},
		"half made":       {Port{Name: "p", Bridge: "winkube0", Up: true}, "[{p true false false false}]"},
		"off the bridge":  {Port{Name: "p", Alias: alias, Up: true}, "[{p false true false true}]"},
		"on another":      {Port{Name: "p", Alias: alias, Bridge: "docker0", Up: true, Hairpin: true}, "[{p false true false false}]"},
		"down":            {Port{Name: "p", Alias: alias, Bridge: "winkube0", Hairpin: true}, "[{p false false true false}]"},
		"without hairpin": {Port{Name: "p", Alias: alias, Bridge: "winkube0", Up: true}, "[{p false false false true}]"},
	} {
		if got := fmt.Sprint(Compare(n, []Port{c.port})); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestFree(t *testing.T) {
	for name, c := range map[string]struct {
		subnet, after string
		taken         []netip.Addr
		upper         bool
		want          string // "": none
	}{
		"the first":                    {subnet: "10.244.1.0/24", want: "10.244.1.2"},
		"the next":                     {subnet: "10.244.1.0/24", after: "10.244.1.9", want: "10.244.1.10"},
		"taken ones are left out":      {subnet: "10.244.1.0/24", after: "10.244.1.9", taken: addrs("10.244.1.10", "10.244.1.11"), want: "10.244.1.12"},
		"from the end to the start":    {subnet: "10.244.1.0/24", after: "10.244.1.254", want: "10.244.1.2"},
		"after one of another range":   {subnet: "10.244.1.0/24", after: "10.244.2.9", want: "10.244.1.2"},
		"the upper half":               {subnet: "10.244.1.0/24", upper: true, want: "10.244.1.128"},
		"the upper half, after lower":  {subnet: "10.244.1.0/24", upper: true, after: "10.244.1.9", want: "10.244.1.128"},
		"the upper half, from its end": {subnet: "10.244.1.0/24", upper: true, after: "10.244.1.254", want: "10.244.1.128"},
		"the upper half of IPv6":       {subnet: "fd00:1::/64", upper: true, want: "fd00:1:0:0:8000::"},
		"IPv6":                         {subnet: "fd00:1::/64", after: "fd00:1::ffff", want: "fd00:1::1:0"},
		"the end of IPv6":              {subnet: "fd00:1::/126", after: "fd00:1::2", want: "fd00:1::3"},
		"a range that ends in a byte":  {subnet: "10.244.0.0/22", after: "10.244.3.254", want: "10.244.0.2"},
		"the only one":                 {subnet: "10.244.1.0/30", want: "10.244.1.2"},
		"none is left":                 {subnet: "10.244.1.0/30", taken: addrs("10.244.1.2")},
		"none is left in the half":     {subnet: "10.244.1.0/29", upper: true, taken: addrs("10.244.1.4", "10.244.1.5", "10.244.1.6")},
	} {
		t.Run(name, func(t *testing.T) {
			after, _ := netip.ParseAddr(c.after)
			taken := map[netip.Addr]bool{}
			for _, a := range c.taken {
				taken[a] = true
			}
			got, err := rangeOf(c.subnet).free(func(a netip.Addr) bool { return taken[a] }, after, c.upper)
			if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
				t.Errorf("got %s, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestFreeGivesAll(t *testing.T) {
	r, taken, last := rangeOf("10.244.1.0/26"), map[netip.Addr]bool{}, netip.MustParseAddr("10.244.1.40")
	for range 64 - 3 { // the network's, the gateway's and the broadcast address
		a, err := r.free(func(a netip.Addr) bool { return taken[a] }, last, false)
		if err != nil || taken[a] || !r.Subnet.Contains(a) {
			t.Fatalf("%s of %v: %v", a, taken, err)
		}
		taken[a], last = true, a
	}
	if a, err := r.free(func(a netip.Addr) bool { return taken[a] }, last, false); err == nil {
		t.Errorf("%s is given twice", a)
	}
}

func TestOwned(t *testing.T) {
	groups := func(text string, err error) func(int) ([]byte, error) {
		return func(pid int) ([]byte, error) {
			if pid != 12 {
				t.Errorf("process %d is read", pid)
			}
			return []byte(text), err
		}
	}
	for name, c := range map[string]struct {
		netns string
		read  func(int) ([]byte, error)
		gone  bool
		fails bool
	}{
		"cgroup v1":        {"/proc/12/ns/net", groups("4:memory:/kubepods/pod1/"+container+"\n1:name=systemd:/x\n", nil), false, false},
		"systemd's driver": {"/proc/12/ns/net", groups("0::/kubepods.slice/docker-"+container+".scope\n", nil), false, false},
		"another's PID":    {"/proc/12/ns/net", groups("0::/kubepods/other\n", nil), true, true},
		"no such process":  {"/proc/12/ns/net", groups("", os.ErrNotExist), true, true},
		"another path":     {"/run/netns/x", groups("", nil), false, true},
	} {
		if err := Owned(c.netns, container, c.read); (err != nil) != c.fails || errors.Is(err, ErrGone) != c.gone {
			t.Errorf("%s: %v", name, err)
		}
	}
}
