// Package vxlan is the format in which nodes announce their tunnel ends: what VXLAN (RFC 7348) needs between two nodes,
// as annotations of the Node that flannel's vxlan back end also writes and reads.
//
//	network: NewDevice --Annotations--> own Node        Nodes --Parse--> End: routes
//
// It is pure. Package network creates the device, package routes the entries for other nodes.
package vxlan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

const (
	// VNI is the virtual network's identifier: the lowest that the Windows Host Networking Service accepts.
	VNI = 4096
	// Port is the UDP port of RFC 7348, the only one that Windows uses.
	Port = 4789
	// LinuxPort is the UDP port that Linux, flannel and Cilium use by default, from before RFC 7348.
	LinuxPort = 8472
)

// MAC is the hardware address of a tunnel end.
type MAC [6]byte

// String formats the MAC with colons: 0e:2a:0a:f4:01:00.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Device is this node's tunnel end in one address family.
type Device struct {
	Name    string       // of the interface
	MAC     MAC          // the same after a reboot, so that other nodes' entries stay valid
	Address netip.Prefix // the host's source address: the first address of its pod CIDR, as a single address
	Local   netip.Addr   // source address of outer packets
	MTU     int          // largest inner packet in bytes
}

// parseMAC parses a hardware address of six bytes, with colons or, as HNS writes it, dashes.
func parseMAC(text string) (MAC, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != len(MAC{}) {
		return MAC{}, fmt.Errorf("hardware address %q: want six bytes like 0e:2a:0a:f4:01:00", text)
	}
	return MAC(mac), nil
}

// chosen reports whether a hardware address has the form that NewDevice makes. HNS of Windows chooses others.
func (m MAC) chosen() bool { return m[0] == 0x0e && m[1] == 0x2a }

// DeviceName returns the name of the interface on Linux, and of the HNS network on Windows. Each family has its own
// device, as in flannel, because its outer packets are of that family.
func DeviceName(four bool) string {
	if four {
		return device4
	}
	return device6
}

var device4, device6 = fmt.Sprintf("winkube.%d", VNI), fmt.Sprintf("winkube-v6.%d", VNI)

// NewDevice returns the device for the pods of cidr on a host with address local, whose interface has the MTU uplink,
// in bytes.
func NewDevice(cidr netip.Prefix, local netip.Addr, uplink int) Device {
	cidr = cidr.Masked()
	first := cidr.Addr()
	// The range belongs to this node alone, so its bits make a unique MAC; 0e is unicast and locally administered.
	bytes := first.AsSlice()
	if first.Is6() {
		bytes = bytes[4:8] // a pod CIDR is a /64 or slightly longer
	}
	d := Device{Name: DeviceName(first.Is4()), Local: local, MTU: uplink - Overhead(local), MAC: MAC{0x0e, 0x2a}}
	copy(d.MAC[2:], bytes)
	d.Address = netip.PrefixFrom(first, first.BitLen())
	return d
}

// Overhead returns what the tunnel adds to each packet, in bytes: the outer IP header, UDP (8), VXLAN (8) and the inner
// Ethernet header (14).
func Overhead(outer netip.Addr) int {
	if outer.Is6() {
		return 40 + 30
	}
	return 20 + 30
}

// String describes the device for messages.
func (d Device) String() string {
	return fmt.Sprintf("%s, %s, mac %s, from %s, mtu %d", d.Name, d.Address, d.MAC, d.Local, d.MTU)
}

// Annotations of a Node with flannel's names (pkg/subnet/kube in its source).
const (
	prefix        = "flannel.alpha.coreos.com/"
	backendType   = prefix + "backend-type"
	subnetManager = prefix + "kube-subnet-manager"
	// mark is our own annotation: the hardware address of an end that we announce, if its form does not show that it is
	// ours.
	mark = "winkube.io/tunnel"
)

// keys are the names of one family's annotations.
type keys struct{ data, public, overwrite string }

func keysOf(four bool) keys {
	if four {
		return keys{prefix + "backend-data", prefix + "public-ip", prefix + "public-ip-overwrite"}
	}
	return keys{prefix + "backend-v6-data", prefix + "public-ipv6", prefix + "public-ipv6-overwrite"}
}

type backendData struct {
	VNI     int
	VtepMAC string
}

// Known returns a Node's annotations that this package reads or writes.
func Known(all map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range all {
		if strings.HasPrefix(k, prefix) || k == mark {
			out[k] = v
		}
	}
	return out
}

// Annotations returns the annotations that announce devices to other nodes. An administrator's public-ip-overwrite in
// have replaces the device's own address, as in flannel. No device: no annotations.
func Annotations(devices []Device, have map[string]string) map[string]string {
	if len(devices) == 0 {
		return nil
	}
	out := map[string]string{backendType: "vxlan", subnetManager: "true"}
	for _, d := range devices {
		k := keysOf(d.Local.Is4())
		data, _ := json.Marshal(backendData{VNI, d.MAC.String()}) // cannot fail: two plain fields
		out[k.data], out[k.public] = string(data), d.Local.String()
		if overwrite := have[k.overwrite]; overwrite != "" {
			out[k.public] = overwrite
		}
		if !d.MAC.chosen() {
			out[mark] = d.MAC.String()
		}
	}
	return out
}

// Changes returns the annotations to write so that have becomes want; nil values are removed. Annotations that we did
// not write stay: their hardware address neither has NewDevice's form nor is marked. Nothing to do is an empty map.
func Changes(have, want map[string]string) map[string]*string {
	out := map[string]*string{}
	for k, v := range want {
		if have[k] != v {
			out[k] = &v
		}
	}
	if _, marked := have[mark]; marked && want[mark] == "" {
		out[mark] = nil
	}
	if len(want) > 0 {
		return out
	}
	for _, four := range []bool{true, false} {
		end, err := parse(have, four)
		if k := keysOf(four); err == nil && (end.MAC.chosen() || have[mark] == end.MAC.String()) {
			for _, name := range []string{k.data, k.public, backendType, subnetManager} {
				if _, there := have[name]; there {
					out[name] = nil
				}
			}
		}
	}
	return out
}

// End is another node's tunnel end.
type End struct {
	Public netip.Addr // destination of outer packets
	MAC    MAC
}

// Parse parses another node's annotations for the family of like. ErrNone: it has none of vxlan.
func Parse(annotations map[string]string, like netip.Addr) (End, error) {
	return parse(annotations, like.Is4())
}

// ErrNone says that a Node announces no tunnel.
var ErrNone = fmt.Errorf("the Node has no annotation %s=vxlan; its kubelet is not in overlay mode or has not started yet", backendType)

func parse(annotations map[string]string, four bool) (End, error) {
	k := keysOf(four)
	kind, there := annotations[backendType]
	if !there {
		return End{}, ErrNone
	}
	if kind != "vxlan" {
		return End{}, fmt.Errorf("annotation %s is %q; want vxlan", backendType, kind)
	}
	text := annotations[k.data]
	data, err := parseData(text)
	if err != nil {
		return End{}, fmt.Errorf("annotation %s is %q; want {\"VNI\":%d,\"VtepMAC\":\"...\"}", k.data, text, VNI)
	}
	if data.VNI != VNI {
		return End{}, fmt.Errorf("annotation %s has VNI %d; want %d, which is what Windows nodes can have (flannel: \"Backend\": {\"VNI\": %d, \"Port\": %d})",
			k.data, data.VNI, VNI, VNI, Port)
	}
	mac, err := parseMAC(data.VtepMAC)
	if err != nil {
		return End{}, fmt.Errorf("annotation %s has VtepMAC %q; want six bytes like 0e:2a:0a:f4:01:00", k.data, data.VtepMAC)
	}
	public, err := netip.ParseAddr(annotations[k.public])
	if err != nil || public.Is4() != four {
		return End{}, fmt.Errorf("annotation %s is %q; want the node's address", k.public, annotations[k.public])
	}
	return End{Public: public, MAC: mac}, nil
}

// usual is the start of backendData as we and flannel write it.
var usual = fmt.Sprintf(`{"VNI":%d,"VtepMAC":"`, VNI)

// parseData parses backendData. Each change of one node reads those of all nodes. Decoding JSON takes 1.3 µs and six
// allocations more per Node than comparing the usual form, at 1,000 nodes a third of the cost of such a change.
func parseData(text string) (data backendData, err error) {
	if mac, ok := strings.CutPrefix(text, usual); ok {
		if mac, ok = strings.CutSuffix(mac, `"}`); ok && !strings.ContainsAny(mac, `"\\`) {
			return backendData{VNI: VNI, VtepMAC: mac}, nil
		}
	}
	err = json.Unmarshal([]byte(text), &data)
	return data, err
}

// Text formats annotations for display, one per line, sorted.
func Text(annotations map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Fprintf(&b, "annotation: %s=%s\n", k, annotations[k])
	}
	return b.String()
}
