//go:build linux

package way

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/vxlan"
)

// changes is how often one node's address changes; the median is reported, because the garbage of earlier work is
// collected during one of them.
const changes = 21

// nodes returns n Nodes with ranges 10.x.y.0/24 in the network 172.16.0.0/16, each with a tunnel endpoint.
func nodes(n int) []*v1.Node {
	var out []*v1.Node
	for i := range n {
		cidr := fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
		local := netip.AddrFrom4([4]byte{172, 16, byte(i / 250), byte(i%250 + 2)})
		device := vxlan.NewDevice(netip.MustParsePrefix(cidr), local, 1500)
		out = append(out, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%04d", i), Annotations: vxlan.Annotations([]vxlan.Device{device}, nil)},
			Spec:       v1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
			Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: local.String()}}},
		})
	}
	return out
}

// thousand measures the routes of a thousand nodes in a separate network namespace.
func thousand(ctx context.Context, out io.Writer) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	fresh, err := netns.New()
	if err != nil {
		return err
	}
	defer fresh.Close()
	defer func() { _ = netns.Set(own) }()
	if err := interfaces(); err != nil {
		return err
	}
	for _, mode := range []routes.Mode{routes.HostGateway, routes.Overlay} {
		table, err := routes.NewRoutingTable()
		if err != nil {
			return err
		}
		cold, change, err := measure(ctx, table, mode)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-14s cold %4d ms   one change %5.1f ms of CPU\n", mode, cold.Milliseconds(), float64(change.Microseconds())/1000)
	}
	return nil
}

// interfaces creates an interface in the nodes' network, and a tunnel.
func interfaces() error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}
	tunnel := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: vxlan.DeviceName(true)}, VxlanId: vxlan.VNI, Port: vxlan.Port}
	addr, err := netlink.ParseAddr("172.16.0.1/16")
	if err != nil {
		return err
	}
	peer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan1"}}
	return errors.Join(netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link), netlink.LinkSetUp(peer),
		netlink.LinkAdd(tunnel), netlink.LinkSetUp(tunnel))
}

// measure writes all routes to an empty table, then changes one node repeatedly. As in the proxy, that includes
// planning and listing.
func measure(ctx context.Context, table routes.RoutingTable, mode routes.Mode) (cold, change time.Duration, err error) {
	all := nodes(1000)
	sync := func() (routes.Diff, error) {
		state, problems := routes.Plan(mode, "n0000", all, routes.Options{})
		if len(problems) > 0 {
			return routes.Diff{}, fmt.Errorf("problem: %s", problems[0])
		}
		return routes.Apply(ctx, table, state)
	}
	begin := time.Now()
	if _, err := sync(); err != nil {
		return 0, 0, err
	}
	cold = time.Since(begin)
	var each []time.Duration
	for i := range changes {
		node := all[500+i]
		moved := fmt.Sprintf("172.16.200.%d", i+1)
		node.Status.Addresses[0].Address = moved
		node.Annotations["flannel.alpha.coreos.com/public-ip"] = moved
		before := cpu()
		d, err := sync()
		if err == nil && len(d.Replace)+len(d.SetPeers) != 1 {
			err = fmt.Errorf("one node changed, and the table by %+v", d)
		}
		if err != nil {
			return 0, 0, errors.Join(err, routes.Cleanup(ctx, table))
		}
		each = append(each, cpu()-before)
	}
	slices.Sort(each)
	return cold, each[changes/2], routes.Cleanup(ctx, table)
}

// cpu returns this process's CPU time.
func cpu() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
