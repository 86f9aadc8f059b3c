package lab

import (
	"context"
	"net/netip"
)

// The host for Windows has an engine and no agent: test/windows runs kubelet.exe and proxy.exe there, under Wine.

func (c *Cluster) newWindows() *Host {
	host := c.newHost("win1", netip.MustParseAddr("172.30.0.13"))
	host.number = len(c.Nodes) + 1
	host.processes = []*Process{
		{Name: "containerd", host: host, argv: host.containerdArgv},
		{Name: "dockerd", host: host, argv: host.dockerdArgv},
	}
	return host
}

// UpWindows brings up the host for Windows and its engine, in a cluster that is up. Down removes it.
func (c *Cluster) UpWindows(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	only := []*Host{c.Windows}
	return c.run(ctx, []step{
		{"windows: host", func(ctx context.Context) error { return c.upHost(ctx, c.Windows) }},
		{"windows: engine", func(ctx context.Context) error { return c.upEnginesOf(ctx, only) }},
		{"windows: images", func(ctx context.Context) error { return c.upImagesOf(ctx, only) }},
	})
}
