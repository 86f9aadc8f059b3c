package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/network/podlink"
)

// testNetwork has pods of both families.
var testNetwork = podlink.Network{Bridge: bridgeName, MTU: 1450, Ranges: []podlink.Range{
	{Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1")},
	{Subnet: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fd00:1::1")},
}}

// links is the kernel interface in the test's namespace; namespaces of threads replace containers.
func links(t testing.TB) *podLinks {
	t.Helper()
	namespace(t)
	k := newPodLinks(func(string, string) error { return nil })
	if err := k.MakeBridge(testNetwork); err != nil {
		t.Fatal(err)
	}
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range testNetwork.Ranges {
		if err := ensureAddress(bridge, netip.PrefixFrom(r.Gateway, r.Subnet.Bits())); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// box is a thread's network namespace in place of a container's.
type box struct {
	cni.Attachment
	calls chan func()
	end   func() // ends the thread, and with it the namespace; idempotent
}

// container creates a namespace like that of an engine without a network: IPv6 off.
func container(t testing.TB, id string) *box {
	t.Helper()
	b := &box{calls: make(chan func())}
	b.end = sync.OnceFunc(func() { close(b.calls) })
	ready := make(chan error, 1)
	go func() { // until end
		runtime.LockOSThread()
		path := fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		b.Attachment = cni.Attachment{ContainerID: strings.Repeat(id, 64), Netns: path}
		_, err := netns.New()
		if err == nil {
			err = netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}})
		}
		ready <- errors.Join(err, os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0))
		for call := range b.calls {
			call()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.end)
	return b
}

// inside calls do in the namespace.
func (b *box) inside(do func() error) error {
	done := make(chan error)
	b.calls <- func() { done <- do() }
	return <-done
}

// shown describes the namespace: the interface with its addresses, routes and some sysctls.
func (b *box) shown(t *testing.T) string {
	t.Helper()
	var out []string
	err := b.inside(func() error {
		link, err := netlink.LinkByName(podlink.Inside)
		if err != nil {
			return err
		}
		out = append(out, fmt.Sprintf("%s %s mtu %d", link.Attrs().HardwareAddr, link.Attrs().Flags, link.Attrs().MTU))
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if !a.IP.IsLinkLocalUnicast() {
				out = append(out, fmt.Sprintf("address %s, tentative %t", a.IPNet, a.Flags&unix.IFA_F_TENTATIVE != 0))
			}
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
		for _, r := range routes {
			if len(r.Gw) > 0 {
				out = append(out, fmt.Sprintf("route %s via %s", r.Dst, r.Gw))
			}
		}
		for _, key := range []string{"ipv4/conf/eth0/log_martians", "ipv6/conf/eth0/accept_ra"} {
			value, failed := os.ReadFile("/proc/sys/net/" + key)
			out, err = append(out, key+"="+strings.TrimSpace(string(value))), errors.Join(err, failed)
		}
		return err
	})
	if err != nil {
		out = append(out, err.Error())
	}
	return strings.Join(out, "\n")
}

// reaches connects from a container to a closed port; only the other end can refuse.
func (b *box) reaches(t *testing.T, to string) {
	t.Helper()
	err := b.inside(func() error {
		_, err := (&net.Dialer{Timeout: 2 * time.Second}).Dial("tcp", net.JoinHostPort(to, "9"))
		return err
	})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s is not reached: %v", to, err)
	}
}

func use(t testing.TB, k podlink.Kernel) *podlink.Links {
	t.Helper()
	l := podlink.New(k)
	l.Use(testNetwork, podlink.Others{})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestPodLink: a pod has its interface, addresses, routes and sysctls, reaches gateway and pods in both families, and leaves nothing behind.
func TestPodLink(t *testing.T) {
	k := links(t)
	l := use(t, k)
	one, two := container(t, "a"), container(t, "b")
	one.Sysctls = map[string]string{"net/ipv4/conf/eth0/log_martians": "1"}
	for i, b := range []*box{one, two} {
		want := fmt.Sprintf("[10.244.1.%d fd00:1::%d]", i+2, i+2)
		for range 2 { // the second round changes nothing
			if got, err := l.Add(t.Context(), b.Attachment); err != nil || fmt.Sprint(got) != want {
				t.Fatalf("got %v, %v; want %s", got, err, want)
			}
		}
	}
	const want = `0a:2a:0a:f4:01:02 up|broadcast|multicast|running mtu 1450
address 10.244.1.2/24, tentative false
address fd00:1::2/64, tentative false
route 0.0.0.0/0 via 10.244.1.1
route ::/0 via fd00:1::1
ipv4/conf/eth0/log_martians=1
ipv6/conf/eth0/accept_ra=0`
	if got := one.shown(t); got != want {
		t.Errorf("the pod has\n%s\nwant\n%s", got, want)
	}
	for _, to := range []string{"10.244.1.1", "10.244.1.3", "fd00:1::1", "fd00:1::3", "::1"} {
		one.reaches(t, to)
	}
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil || bridge.Attrs().HardwareAddr.String() != "0a:2a:0a:f4:01:01" {
		t.Errorf("the bridge is %v, %v", bridge, err)
	}
	ports, err := k.Ports()
	if err != nil || len(ports) != 2 || len(podlink.Compare(testNetwork, ports)) > 0 {
		t.Errorf("ports are %+v, %v", ports, err)
	}
	if err := l.Del(t.Context(), one.ContainerID, ""); err != nil {
		t.Fatal(err)
	}
	if got := one.shown(t); !strings.Contains(got, "not found") {
		t.Errorf("after its removal the pod has %s", got)
	}
	two.end()
	if err := l.Collect(t.Context(), func(context.Context, []string) (map[string]bool, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if ports, err := k.Ports(); err != nil || len(ports) > 0 || len(l.Records()) > 0 {
		t.Errorf("left are %v, %v, %v", ports, l.Records(), err)
	}
}

var errDead = errors.New("the program is dead")

// dying performs some steps of the next Do and then stops, like a killed program.
type dying struct {
	*podLinks
	left int
}

func (d *dying) Do(steps []podlink.Step, container, netns string) error {
	if d.left >= len(steps) {
		return d.podLinks.Do(steps, container, netns)
	}
	return errors.Join(d.podLinks.Do(steps[:d.left], container, netns), errDead)
}

func (*dying) Repair(podlink.Network, podlink.Repair) error { return errDead }

// TestPodLinkKilledAnywhere: after a kill between any two steps, the next program reaches the same result, and leaves nothing else.
func TestPodLinkKilledAnywhere(t *testing.T) {
	k := links(t)
	a := container(t, "c")
	want := podlink.Record{Container: a.ContainerID, Netns: a.Netns, Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:1::2")}}
	clean := ""
	for dies := len(podlink.Steps(testNetwork, want, nil)); dies >= 0; dies-- {
		_, err := use(t, &dying{k, dies}).Add(t.Context(), a.Attachment)
		if (err != nil) == (clean == "") {
			t.Fatalf("dies after %d steps: %v", dies, err)
		}
		l := use(t, k)
		if clean != "" {
			if ports, err := k.Ports(); err != nil || len(ports) > 0 {
				t.Errorf("dies after %d steps: %v, %v are left", dies, ports, err)
			}
		}
		got, err := l.Add(t.Context(), a.Attachment)
		if err != nil || !slices.Equal(got, want.Addrs) {
			t.Errorf("dies after %d steps: the next program gives %v, %v", dies, got, err)
		}
		now := a.shown(t)
		if clean == "" {
			clean = now
		}
		if now != clean {
			t.Errorf("dies after %d steps: the pod has\n%s\nwant\n%s", dies, now, clean)
		}
		if err := l.Del(t.Context(), a.ContainerID, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPodLinkRepaired: damage from outside is repaired without changing addresses.
func TestPodLinkRepaired(t *testing.T) {
	k := links(t)
	l := use(t, k)
	a := container(t, "d")
	if _, err := l.Add(t.Context(), a.Attachment); err != nil {
		t.Fatal(err)
	}
	port := func() netlink.Link {
		link, err := netlink.LinkByName(podlink.PortName(a.ContainerID))
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	for what, damage := range map[string]func() error{
		"port removed":    func() error { return netlink.LinkDel(port()) },
		"off the bridge":  func() error { return netlink.LinkSetNoMaster(port()) },
		"port down":       func() error { return netlink.LinkSetDown(port()) },
		"without hairpin": func() error { return netlink.LinkSetHairpin(port(), false) },
		"bridge removed": func() error {
			bridge, err := netlink.LinkByName(bridgeName)
			return errors.Join(err, netlink.LinkDel(bridge), k.MakeBridge(testNetwork), ensureGateway())
		},
	} {
		if err := damage(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := l.Load(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := l.Repair(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		ports, err := k.Ports()
		if err != nil || len(ports) != 1 || len(podlink.Compare(testNetwork, ports)) > 0 {
			t.Errorf("%s: ports are %+v, %v", what, ports, err)
		}
		a.reaches(t, "10.244.1.1")
	}
}

func ensureGateway() error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	return ensureAddress(bridge, netip.MustParsePrefix("10.244.1.1/24"))
}

// TestBridgeKeepsItsHardwareAddress: pods have cached it, even if an engine created the bridge and removed it.
func TestBridgeKeepsItsHardwareAddress(t *testing.T) {
	k := links(t)
	remove := func() {
		t.Helper()
		bridge, err := netlink.LinkByName(bridgeName)
		if err == nil {
			err = netlink.LinkDel(bridge)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	remove()
	addLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: net.HardwareAddr{2, 0x42, 1, 2, 3, 4}}}, "10.244.1.1/24")
	made := func(want string) {
		t.Helper()
		if err := k.MakeBridge(testNetwork); err != nil {
			t.Fatal(err)
		}
		if got := described(t, bridgeName); !strings.Contains(got, want) {
			t.Errorf("the bridge is %s, want %s", got, want)
		}
	}
	made("02:42:01:02:03:04")
	remove()
	made("02:42:01:02:03:04")
	if err := k.RemoveBridge(bridgeName); err != nil {
		t.Fatal(err)
	}
	made("0a:2a:0a:f4:01:01")
}

// TestForeignInterfacesStay: interfaces that only look like ours are neither used nor removed.
func TestForeignInterfacesStay(t *testing.T) {
	k := links(t)
	const name = "wkp0123456789ab"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "other"}); err != nil {
		t.Fatal(err)
	}
	if ports, err := k.Ports(); err != nil || len(ports) > 0 {
		t.Errorf("%v, %v", ports, err)
	}
	if err := k.Repair(testNetwork, podlink.Repair{Port: name, Remove: true}); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("it is removed: %v", err)
	}
	if removed, err := RemovePodLinks(); err != nil || fmt.Sprint(removed) != "[interface winkube0]" {
		t.Errorf("%v, %v", removed, err)
	}
	if _, err := netlink.LinkByName(name); err != nil {
		t.Error(err)
	}
}

// TestNamespaceGone: an exited process, or one of another container or the host, is refused.
func TestNamespaceGone(t *testing.T) {
	k := links(t)
	a := container(t, "e")
	steps := podlink.Steps(testNetwork, podlink.Record{Container: a.ContainerID, Netns: a.Netns, Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.9")}}, nil)
	if err := PodLinks().Do(steps, a.ContainerID, fmt.Sprintf("/proc/%d/ns/net", os.Getpid())); !errors.Is(err, podlink.ErrGone) {
		t.Errorf("a process of no container: %v", err)
	}
	if err := k.Do(steps, a.ContainerID, "/proc/thread-self/ns/net"); err == nil || !strings.Contains(err.Error(), "host's") {
		t.Errorf("the host's own: %v", err)
	}
	if err := k.Do(steps, a.ContainerID, "/proc/4194305/ns/net"); !errors.Is(err, podlink.ErrGone) {
		t.Errorf("a process that has ended: %v", err)
	}
	if ports, err := k.Ports(); err != nil || len(ports) > 0 {
		t.Errorf("%v, %v", ports, err)
	}
}

func TestWatchPodLinks(t *testing.T) {
	k := links(t)
	l := use(t, k)
	a := container(t, "f")
	if _, err := l.Add(t.Context(), a.Attachment); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file, err := openLinks()
	if err != nil {
		t.Fatal(err)
	}
	gone, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- follow(ctx, file, func(port string) { gone <- port }) }()
	port := podlink.PortName(a.ContainerID)
	if err := k.Repair(testNetwork, podlink.Repair{Port: port, Remove: true}); err != nil {
		t.Fatal(err)
	}
	if got := <-gone; got != port {
		t.Errorf("%s is gone, want %s", got, port)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// BenchmarkPodLink connects and disconnects a pod with addresses of both families.
func BenchmarkPodLink(b *testing.B) {
	k := links(b)
	l := use(b, k)
	a := container(b, "b")
	var adding, removing time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := l.Add(b.Context(), a.Attachment); err != nil {
			b.Fatal(err)
		}
		added := time.Now()
		if err := l.Del(b.Context(), a.ContainerID, ""); err != nil {
			b.Fatal(err)
		}
		adding, removing = adding+added.Sub(began), removing+time.Since(added)
	}
	b.ReportMetric(float64(adding.Microseconds())/float64(b.N), "us/add")
	b.ReportMetric(float64(removing.Microseconds())/float64(b.N), "us/del")
}
