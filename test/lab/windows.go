package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// A host for Windows has an engine and no agent: test/windows runs kubelet.exe and proxy.exe there, under Wine.

func (c *Cluster) newWindows() (hosts []*Host) {
	for i, addr := range []string{"172.30.0.13", "172.30.0.14", "172.30.0.17", "172.30.0.18"} {
		host := c.newHost(fmt.Sprintf("win%d", i+1), netip.MustParseAddr(addr))
		host.number = len(c.Nodes) + len(c.spare) + 1 + i
		host.processes = []*Process{
			{Name: "containerd", host: host, argv: host.containerdArgv},
			{Name: "dockerd", host: host, argv: host.dockerdArgv},
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// UpWindows starts the Windows hosts and their engines in a running cluster. Down removes them.
func (c *Cluster) UpWindows(ctx context.Context, hosts ...*Host) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	return c.run(ctx, []step{
		{"windows: hosts", func(ctx context.Context) error {
			for _, host := range hosts {
				if err := c.upHost(ctx, host); err != nil {
					return err
				}
			}
			return nil
		}},
		{"windows: engines", func(ctx context.Context) error { return c.upEnginesOf(ctx, hosts) }},
		{"windows: images", func(ctx context.Context) error { return c.upImagesOf(ctx, hosts) }},
	})
}
