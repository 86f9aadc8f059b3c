//go:build linux

package deps

import (
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
)
