package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// host is this host.
type host struct{}

// NewHost returns this host, as the calling thread's network namespace shows it.
func NewHost() Host { return host{} }

// Link implements Host.
func (host) Link(addr netip.Addr) (string, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", fmt.Errorf("cannot find the way to %s: %w", addr, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("cannot find the interface that leads to %s: %w", addr, err)
	}
	return link.Attrs().Name, nil
}

// Forget implements Host. The functions of package netlink do not read the ports of SCTP.
func (host) Forget(four bool, only uint32, stale func(Flow) bool) (deleted int, err error) {
	family := uint8(unix.AF_INET6)
	if four {
		family = unix.AF_INET
	}
	request := func(operation, flags int) *nl.NetlinkRequest {
		r := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|operation, flags)
		r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		return r
	}
	dump := request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	if only != 0 { // the kernel compares all bits of a mask, so that bits of others must not be in it
		bits := binary.BigEndian.AppendUint32(nil, only)
		dump.AddData(nl.NewRtAttr(nl.CTA_MARK, bits))
		dump.AddData(nl.NewRtAttr(ctaMarkMask, bits))
	}
	messages, err := dump.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, fmt.Errorf("cannot list connections: %w", err)
	}
	errs := []error{err}
	for _, message := range messages {
		flow, ok := parseFlow(message)
		if !ok || flow.Mark&only != only || !stale(flow) {
			continue
		}
		remove := request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		remove.AddRawData(message[nl.SizeofNfgenmsg:])
		if _, err := remove.Execute(unix.NETLINK_NETFILTER, 0); err == nil {
			deleted++
		} else if !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("cannot delete the connection to %s at %s: %w", flow.To, flow.From, err))
		}
	}
	return deleted, errors.Join(errs...)
}

// Attributes of linux/netfilter/nfnetlink_conntrack.h that package nl lacks.
const ctaMarkMask = 21

// parseFlow reads a connection of the kernel's table; false: it is not of SCTP.
func parseFlow(message []byte) (flow Flow, ok bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return flow, false
	}
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			_, flow.To, ok = parseTuple(value)
		case nl.CTA_TUPLE_REPLY:
			flow.From, _, _ = parseTuple(value)
		case nl.CTA_MARK:
			if len(value) == 4 {
				flow.Mark = binary.BigEndian.Uint32(value)
			}
		}
	}
	return flow, ok
}

// parseTuple reads one direction of a connection; false: it is not of SCTP.
func parseTuple(tuple []byte) (from, to netip.AddrPort, sctp bool) {
	parts := attributes(tuple)
	ip, proto := attributes(parts[nl.CTA_TUPLE_IP]), attributes(parts[nl.CTA_TUPLE_PROTO])
	end := func(four, six, port uint16) netip.AddrPort {
		addr, ok := netip.AddrFromSlice(ip[four])
		if !ok {
			addr, _ = netip.AddrFromSlice(ip[six])
		}
		if len(proto[port]) != 2 {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(proto[port]))
	}
	number := proto[nl.CTA_PROTO_NUM]
	return end(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT), end(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT),
		len(number) == 1 && number[0] == syscall.IPPROTO_SCTP
}

// attributes are netlink attributes by kind, without flags.
func attributes(data []byte) map[uint16][]byte {
	list, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil
	}
	out := map[uint16][]byte{}
	for _, a := range list {
		out[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return out
}
