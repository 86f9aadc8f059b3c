package network

import (
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// concerns says whether a message of the kernel on links and addresses tells of more than a container's own interface: those come and go
// with every pod, and nothing of the plan hangs on them. A message that cannot be read may tell of anything.
func concerns(message []byte) bool {
	messages, err := syscall.ParseNetlinkMessage(message)
	return err != nil || slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool {
		switch m.Header.Type {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR: // every interface gives itself a link-local one (struct ifaddrmsg)
			return len(m.Data) < unix.SizeofIfAddrmsg || m.Data[3] != unix.RT_SCOPE_LINK
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if len(m.Data) > 0 && m.Data[0] == unix.AF_BRIDGE { // a bridge's port
				return false
			}
			header := unix.NlMsghdr(m.Header)
			link, err := netlink.LinkDeserialize(&header, m.Data)
			return err != nil || link.Type() != "veth"
		}
		return true
	})
}
