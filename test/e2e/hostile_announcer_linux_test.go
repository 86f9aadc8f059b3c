package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

const arpRequest, arpReply = 1, 2

// ethernetARP builds a packet of ARP for IPv4 (RFC 826) in an Ethernet frame.
func ethernetARP(operation uint16, from net.HardwareAddr, sender netip.Addr, to net.HardwareAddr, target netip.Addr) []byte {
	frame := slices.Concat(to, from, []byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4})
	frame = binary.BigEndian.AppendUint16(frame, operation)
	return slices.Concat(frame, from, sender.AsSlice(), to, target.AsSlice())
}

// announce does on a host what the speaker of a load balancer does that announces addresses by ARP: it answers requests
// for an address, and first tells the link with gratuitous packets. Call stop once.
func (s *space) announce(host *lab.Host, addr netip.Addr) (stop func()) {
	s.Helper()
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, syscall.ETH_P_ARP))
	var socket int
	var own *net.Interface
	s.must(within(host, func() (err error) {
		if own, err = net.InterfaceByName("eth0"); err != nil {
			return err
		}
		socket, err = syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(protocol))
		return err
	}))
	wake := syscall.NsecToTimeval(int64(200 * time.Millisecond)) // to see that it shall stop
	s.must(syscall.SetsockoptTimeval(socket, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wake))
	s.must(syscall.Bind(socket, &syscall.SockaddrLinklayer{Protocol: protocol, Ifindex: own.Index}))
	to := &syscall.SockaddrLinklayer{Protocol: protocol, Ifindex: own.Index, Halen: 6}
	everyone := bytes.Repeat([]byte{0xff}, 6)
	for _, operation := range []uint16{arpRequest, arpReply} {
		s.must(syscall.Sendto(socket, ethernetARP(operation, own.HardwareAddr, addr, everyone, addr), 0, to))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		defer syscall.Close(socket)
		frame := make([]byte, 1514)
		for ctx.Err() == nil {
			n, _, err := syscall.Recvfrom(socket, frame, 0)
			if err != nil || n < 42 || binary.BigEndian.Uint16(frame[20:]) != arpRequest || !bytes.Equal(frame[38:42], addr.AsSlice()) {
				continue
			}
			asker, sender := net.HardwareAddr(slices.Clone(frame[22:28])), netip.AddrFrom4([4]byte(frame[28:32]))
			if sender == addr {
				continue // gratuitous
			}
			if err := syscall.Sendto(socket, ethernetARP(arpReply, own.HardwareAddr, addr, asker, sender), 0, to); err != nil {
				s.Error(err)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	s.Cleanup(stop)
	return stop
}

// TestHostileAnnouncer: a load balancer that announces an address by ARP from one node, as MetalLB does in layer 2 mode,
// works beside the proxies. They do not answer for it, clients reach the node that announces it, and follow to another.
func TestHostileAnnouncer(t *testing.T) {
	s := newSpace(t)
	near, far := cluster.Nodes[0], cluster.Nodes[1]
	for _, node := range []*lab.Host{near, far} {
		pod := s.pod("web-"+node.Name, node, "serve", "8080")
		pod.Labels["app"] = "web"
		s.create(pod)
	}
	for _, node := range []*lab.Host{near, far} {
		s.ready("web-" + node.Name)
	}
	for i, policy := range []v1.ServiceExternalTrafficPolicy{v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal} {
		addr := netip.AddrFrom4([4]byte{172, 30, 0, byte(94 + i)})
		t.Run(string(policy), func(t *testing.T) { (&space{T: t, name: s.name}).announced(policy, addr, near, far) })
	}
}

func (s *space) announced(policy v1.ServiceExternalTrafficPolicy, addr netip.Addr, near, far *lab.Host) {
	service := s.claim(strings.ToLower(string(policy)), "web", []v1.ServicePort{tcp(80, 8080)}, func(spec *v1.ServiceSpec) {
		spec.Type, spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, policy
	})
	service.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: addr.String()}}
	_, err := client.CoreV1().Services(s.name).UpdateStatus(s.Context(), service, metav1.UpdateOptions{})
	s.must(err)
	front := addr.String() + ":80"
	for _, node := range []*lab.Host{near, far} {
		s.eventually(time.Minute, front+" on "+node.Name, func(context.Context) error {
			return within(node, func() error {
				_, err := visit(front)
				return err
			})
		})
	}
	outside := cluster.Control
	s.Cleanup(func() {
		_, _ = outside.Exec(context.Background(), "ip", "neigh", "flush", "to", addr.String(), "dev", "eth0")
	})
	served := func(by *lab.Host) {
		s.Helper()
		for range 5 {
			s.must(within(outside, func() error {
				got, err := visit(front)
				if err == nil && got != hello("web-"+by.Name) && (policy == v1.ServiceExternalTrafficPolicyLocal || !strings.HasPrefix(got, hello("web-"))) {
					err = fmt.Errorf("it says %q", got)
				}
				return err
			}))
		}
	}
	if err := within(outside, func() error {
		_, err := visit(front)
		return err
	}); err == nil {
		s.Errorf("%s is served although no one announces it: a node answers ARP for it", front)
	}
	stop := s.announce(near, addr)
	if got, want := s.neighbour(outside, addr), s.hardware(near); got != want {
		s.Errorf("%s answers for %s, want %s, the node that announces it", got, addr, want)
	}
	served(near)
	stop()
	s.announce(far, addr)
	want := s.hardware(far)
	s.eventually(time.Minute, "the client follows to "+far.Name, func(ctx context.Context) error {
		out, err := outside.Exec(ctx, "ip", "neigh", "show", "to", addr.String(), "dev", "eth0")
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("%q, want %s", strings.TrimSpace(out), want)
		}
		return err
	})
	served(far)
}
