//go:build linux

package way

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/test/output"
)

// bare measures the kernel alone on the same path: two hosts on a switch, each with a bridge and one pod, without
// packet filter, agent or engine.
type bare struct{ hosts, pods []place }

// alone prints the rates of the kernel alone.
func alone(ctx context.Context, out io.Writer, overlay bool) error {
	b, err := newBare(ctx, overlay)
	defer b.remove(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for _, p := range []place{b.hosts[1], b.pods[1]} {
		stop, err := p.listen(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	return beside(ctx, out, "kernel alone", b.hosts, b.pods)
}

// newBare creates the namespaces; the caller calls remove, also after an error.
func newBare(ctx context.Context, overlay bool) (b *bare, err error) {
	b = &bare{}
	for i := range 2 {
		b.hosts = append(b.hosts, place{netns: fmt.Sprintf("/run/netns/winkube-bare-h%d", i), addr: fmt.Sprintf("10.9.0.%d", i+1)})
		b.pods = append(b.pods, place{netns: fmt.Sprintf("/run/netns/winkube-bare-p%d", i), addr: fmt.Sprintf("10.9.%d.2", i+1)})
	}
	b.remove(ctx) // left by a killed run
	script := []string{"netns add winkube-bare-sw", "-n winkube-bare-sw link add br0 type bridge", "-n winkube-bare-sw link set br0 up"}
	for i := range 2 {
		other := 1 - i
		script = append(script, fmt.Sprintf("netns add winkube-bare-h%d", i), fmt.Sprintf("netns add winkube-bare-p%d", i),
			fmt.Sprintf("-n winkube-bare-sw link add h%[1]d type veth peer name eth0 netns winkube-bare-h%[1]d", i),
			fmt.Sprintf("-n winkube-bare-sw link set h%d master br0 up", i))
		host := []string{
			fmt.Sprintf("addr add 10.9.0.%d/24 dev eth0", i+1), "link set eth0 up",
			"link add br0 type bridge", fmt.Sprintf("addr add 10.9.%d.1/24 dev br0", i+1), "link set br0 up",
			fmt.Sprintf("link add p type veth peer name eth0 netns winkube-bare-p%d", i), "link set p master br0 up",
		}
		mtu, to := 1500, fmt.Sprintf("via 10.9.0.%d", other+1)
		if overlay {
			mtu, to = 1450, fmt.Sprintf("via 10.8.0.%d dev tunnel", other+1)
			host = append(host, fmt.Sprintf("link add tunnel type vxlan id %d dstport %d local 10.9.0.%d remote 10.9.0.%d", vxlan.VNI, vxlan.Port, i+1, other+1),
				fmt.Sprintf("addr add 10.8.0.%d/24 dev tunnel", i+1), fmt.Sprintf("link set tunnel mtu %d up", mtu))
		}
		host = append(host, fmt.Sprintf("route add 10.9.%d.0/24 %s", other+1, to))
		for _, line := range host {
			script = append(script, fmt.Sprintf("-n winkube-bare-h%d %s", i, line))
		}
		for _, line := range []string{
			fmt.Sprintf("addr add 10.9.%d.2/24 dev eth0", i+1), fmt.Sprintf("link set eth0 mtu %d up", mtu), fmt.Sprintf("route add default via 10.9.%d.1", i+1),
		} {
			script = append(script, fmt.Sprintf("-n winkube-bare-p%d %s", i, line))
		}
	}
	for _, line := range script {
		if said, err := output.Of(exec.CommandContext(ctx, "ip", strings.Fields(line)...)); err != nil {
			return b, fmt.Errorf("ip %s: %w: %s", line, err, said)
		}
	}
	for _, h := range b.hosts {
		if said, err := output.Of(exec.CommandContext(ctx, "nsenter", "--net="+h.netns, "--", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")); err != nil {
			return b, fmt.Errorf("cannot forward in %s: %w: %s", h.netns, err, said)
		}
	}
	return b, nil
}

func (b *bare) remove(ctx context.Context) {
	for _, p := range append([]place{{netns: "/run/netns/winkube-bare-sw"}}, append(b.hosts, b.pods...)...) {
		_ = exec.CommandContext(ctx, "ip", "netns", "delete", strings.TrimPrefix(p.netns, "/run/netns/")).Run()
	}
}
