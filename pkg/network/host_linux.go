package network

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
)

type linuxHost struct{ firewall *Firewall }

// NewHost returns this host.
func NewHost() Host { return linuxHost{NewFirewall(command.New(), "/proc/sys")} }

// Apply implements Host.
func (h linuxHost) Apply(ctx context.Context, s State) error { return h.firewall.Apply(ctx, s.Rules) }

// nftablesGroup is the multicast group on which the kernel tells of changed nftables rules, iptables' among them (NFNLGRP_NFTABLES in
// linux/netfilter/nfnetlink.h). The older xtables tell nothing.
const nftablesGroup = 7

// Changes implements Host: interfaces that come and go, and packet filter rules.
func (linuxHost) Changes(ctx context.Context) (<-chan struct{}, error) {
	hints := make(chan struct{}, 1)
	if err := listen(ctx, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, hints); err != nil {
		return nil, err
	}
	return hints, listen(ctx, unix.NETLINK_NETFILTER, nftablesGroup, hints)
}

// listen hints for every message of one netlink group until ctx ends.
func listen(ctx context.Context, protocol int, group uint, hints chan<- struct{}) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return fmt.Errorf("cannot open netlink socket %d: %w", protocol, err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)}); err != nil {
		file.Close()
		return fmt.Errorf("cannot listen on netlink socket %d: %w", protocol, err)
	}
	context.AfterFunc(ctx, func() { file.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			// An overrun is news as well.
			if _, err := file.Read(buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case hints <- struct{}{}:
			default:
			}
		}
	}()
	return nil
}
