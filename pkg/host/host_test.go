package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadThisMachine(t *testing.T) {
	f, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if f.Hostname == "" || f.Hostname != strings.ToLower(f.Hostname) || f.CPUs < 1 || f.Memory < 64<<20 || f.KernelVersion == "" || f.OSImage == "" ||
		f.BootID == "" || f.OS == "" || f.Arch == "" || (f.OS == "windows") != (f.WindowsBuild > 0) {
		t.Errorf("facts: %+v", f)
	}
	again, err := Read()
	if err != nil || again.BootID != f.BootID || again.MachineID != f.MachineID {
		t.Errorf("changed to %+v, %v", again, err)
	}
	d, err := DiskUsage(t.TempDir())
	if err != nil || d.Capacity == 0 || d.Available > d.Capacity || d.Used > d.Capacity {
		t.Errorf("disk: %+v, %v", d, err)
	}
	for _, path := range []string{t.TempDir() + "/none/none", "a\x00b"} {
		if _, err := DiskUsage(path); err == nil {
			t.Errorf("disk of %q, which does not exist", path)
		}
	}
	if boot, err := BootTime(); err != nil || boot.After(time.Now()) || boot.Year() < 2000 {
		t.Errorf("boot time: %v, %v", boot, err)
	}
	if _, err := Elevated(); err != nil {
		t.Error(err)
	}
	all, err := Addresses()
	if err != nil || !slices.ContainsFunc(all, netip.Addr.IsLoopback) {
		t.Errorf("addresses: %v, %v", all, err)
	}
	// A machine without any network has no node address; one with a network must return one of its addresses.
	if own, err := NodeAddress(""); err == nil && (len(own) != 1 || !slices.Contains(all, own[0])) {
		t.Errorf("node address %v is not among %v", own, all)
	}
}

func TestChoose(t *testing.T) {
	addrs := func(s string) (out []netip.Addr) {
		for _, a := range strings.Fields(s) {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	lo := iface{Name: "lo", Loopback: true, Addrs: addrs("127.0.0.1 ::1")}
	docker := iface{Name: "docker0", Addrs: addrs("172.17.0.1")}
	eth0 := iface{Name: "eth0", Addrs: addrs("169.254.3.4 10.0.0.5 fe80::5 fd00::5")}
	eth1 := iface{Name: "eth1", Addrs: addrs("192.168.7.1"), Default4: true}
	six := iface{Name: "eth2", Addrs: addrs("fe80::6 2001:db8::6"), Default6: true}
	for name, c := range map[string]struct {
		ifaces   []iface
		override string
		want     string // addresses, or parts of the error
	}{
		"default route":             {[]iface{lo, docker, eth0, eth1}, "", "192.168.7.1"},
		"no route: first real one":  {[]iface{lo, docker, eth0}, "", "10.0.0.5"},
		"prefers IPv4":              {[]iface{lo, six, eth1}, "", "192.168.7.1"},
		"IPv6 only":                 {[]iface{lo, docker, six}, "", "2001:db8::6"},
		"prefers IPv6":              {[]iface{lo, eth1, six}, "::", "2001:db8::6"},
		"IPv6 wanted, none routed":  {[]iface{lo, eth0, eth1}, "::", "192.168.7.1"},
		"IPv6 wanted, no routes":    {[]iface{lo, eth0}, "::", "fd00::5"},
		"0.0.0.0":                   {[]iface{lo, eth0, six}, "0.0.0.0", "2001:db8::6"},
		"nothing":                   {[]iface{lo, docker}, "", "error: no interface --node-ip"},
		"one of ours":               {[]iface{lo, eth0, eth1}, "10.0.0.5", "10.0.0.5"},
		"even Docker's":             {[]iface{lo, docker}, "172.17.0.1", "172.17.0.1"},
		"dual":                      {[]iface{lo, eth0}, "fd00::5,10.0.0.5", "fd00::5 10.0.0.5"},
		"two of one family":         {[]iface{lo, eth0, eth1}, "192.168.7.1,10.0.0.5", "error: one of IPv4 and one of IPv6"},
		"not ours":                  {[]iface{lo, eth0}, "10.9.9.9", "error: 10.9.9.9 it has 10.0.0.5, fd00::5"},
		"loopback":                  {[]iface{lo, eth0}, "127.0.0.1", "error: cannot reach"},
		"link-local":                {[]iface{lo, eth0}, "169.254.3.4", "error: cannot reach"},
		"a name":                    {[]iface{lo, eth0}, "eth0", `error: "eth0" must be an IP address`},
		"mapped":                    {[]iface{lo, eth0}, "::ffff:10.0.0.5", "10.0.0.5"},
		"default on a bridge":       {[]iface{lo, {Name: "br-lan", Default4: true, Addrs: addrs("10.1.1.1")}, eth0}, "", "10.1.1.1"},
		"no address on the default": {[]iface{lo, {Name: "ppp0", Default4: true}, eth0}, "", "10.0.0.5"},
	} {
		got, err := choose(c.ifaces, c.override)
		if parts, bad := strings.CutPrefix(c.want, "error: "); bad {
			if err == nil || !strings.Contains(err.Error(), strings.Fields(parts)[0]) || !strings.Contains(err.Error(), parts[strings.LastIndex(parts, " ")+1:]) {
				t.Errorf("%s: got %v, %v; want %s", name, got, err, c.want)
			}
			continue
		}
		if err != nil || !slices.Equal(got, addrs(c.want)) {
			t.Errorf("%s: got %v, %v; want %s", name, got, err, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	if memory, swap, err := parseMeminfo("MemTotal:       8000 kB\nMemFree: 1 kB\nSwapTotal:  16 kB\n"); err != nil || memory != 8000<<10 || swap != 16<<10 {
		t.Error(memory, swap, err)
	}
	for _, bad := range []string{"", "MemFree: 1 kB", "MemTotal: x kB", "MemTotal:"} {
		if _, _, err := parseMeminfo(bad); err == nil {
			t.Errorf("%q is a meminfo", bad)
		}
	}
	for text, want := range map[string]string{
		"NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n": "Debian GNU/Linux 12 (bookworm)",
		"PRETTY_NAME='Alpine'": "Alpine", "PRETTY_NAME=\"\"": "Linux", "": "Linux"} {
		if got := parseOSRelease(text); got != want {
			t.Errorf("%q is %q", text, got)
		}
	}
	for text, want := range map[string]int{"0": 1, "0-3\n": 4, "0-3,5,7-8": 7, "": 0, "x": 0, "3-0": 0} {
		if got := parseCPUList(text); got != want {
			t.Errorf("%q is %d CPUs, want %d", text, got, want)
		}
	}
	if got, err := parseBootTime("cpu 1\nbtime 1700000000\n"); err != nil || got.Unix() != 1700000000 {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "btime x\n"} {
		if _, err := parseBootTime(bad); err == nil {
			t.Errorf("%q has a boot time", bad)
		}
	}
}

func TestBootID(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 40, 0, time.FixedZone("", 3600))
	for counter, want := range map[uint64]string{0: "20260304T0407Z", 42: "42"} {
		if got := bootID(counter, at); got != want {
			t.Errorf("counter %d: %q, want %q", counter, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("MemTotal: 1 kB\nbtime 1\nPRETTY_NAME=\"x\"\n0-3,5")
	f.Fuzz(func(t *testing.T, text string) {
		if memory, _, err := parseMeminfo(text); err == nil && memory == 0 {
			t.Error("no memory and no error")
		}
		if parseOSRelease(text) == "" || parseCPUList(text) < 0 {
			t.Error("nonsense")
		}
		_, _ = parseBootTime(text)
	})
}

// TestSameDisk: a directory and one in it are on one volume.
func TestSameDisk(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if same, err := SameDisk(dir, inside); !same || err != nil {
		t.Errorf("%v, %v", same, err)
	}
	if same, err := SameDisk(dir, "a\x00b"); same || err == nil {
		t.Errorf("a path that is none: %v, %v", same, err)
	}
}

func TestDoors(t *testing.T) {
	a := netip.MustParseAddr
	got := doors([]iface{
		{Name: "lo", Loopback: true, Addrs: []netip.Addr{a("127.0.0.1"), a("::1"), a("10.96.0.10")}},
		{Name: "br0", Inner: true, Addrs: []netip.Addr{a("192.0.2.7"), a("172.17.0.1")}},
		{Name: "winkube-svc", Inner: true, Addrs: []netip.Addr{a("198.51.100.1")}},
		{Name: "eth0", Addrs: []netip.Addr{a("203.0.113.5"), a("192.0.2.7"), a("fe80::5"), a("2001:db8::5")}},
	}, []netip.Addr{a("192.0.2.7")})
	if want := []netip.Addr{a("192.0.2.7"), a("127.0.0.1"), a("::1"), a("203.0.113.5"), a("2001:db8::5")}; !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

// TestOwn: a hostPort may be at any address of the host, and at none of a Service.
func TestOwn(t *testing.T) {
	a := netip.MustParseAddr
	got := own([]iface{
		{Name: "lo", Loopback: true, Addrs: []netip.Addr{a("127.0.0.1"), a("::1"), a("10.96.0.10")}},
		{Name: "docker0", Inner: true, Addrs: []netip.Addr{a("172.17.0.1")}},
		{Name: "nodelocaldns", Inner: true, Dummy: true, Addrs: []netip.Addr{a("10.96.0.10")}},
		{Name: "winkube-svc", Inner: true, Addrs: []netip.Addr{a("198.51.100.1")}},
		{Name: "vEthernet (HNS Internal NIC)", Addrs: []netip.Addr{a("10.96.0.1")}},
		{Name: "eth0", Addrs: []netip.Addr{a("203.0.113.5"), a("192.0.2.7"), a("fe80::5"), a("2001:db8::5")}},
	}, []netip.Addr{a("192.0.2.7"), a("203.0.113.99")})
	if want := []netip.Addr{a("192.0.2.7"), a("203.0.113.99"), a("127.0.0.1"), a("::1"), a("172.17.0.1"), a("203.0.113.5"), a("fe80::5"), a("2001:db8::5")}; !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}
