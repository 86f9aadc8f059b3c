package app

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeproxy"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/pkg/routes"
)

// settings is the meaning of the command line on this host.
type settings struct {
	config           kubeproxy.Config
	backEnd          string
	backEndFrom      string // why
	firewall         bool   // Windows Firewall admits clients on other hosts
	hns              hnslb.Config
	serviceInterface string // "": one that we create
	nodePorts        []netip.Prefix
	udpIdle          time.Duration
	clientShare      int
	tracked          int // least entries of connection tracking; 0: as the host has it
	windows          bool
	mode             routes.Mode
	nextHop          routes.NextHop
	clusterCIDRs     []netip.Prefix
	rotateToken      bool
	connectCgroup    string // "": all processes of this host
}

// settings checks every flag and returns the first mistake. It changes nothing.
func (o *options) settings(facts host.Facts) (*settings, error) {
	s := &settings{firewall: o.windowsFirewall, udpIdle: o.config.Conntrack.UDPStreamTimeout.Duration, clientShare: o.clientShare, serviceInterface: os.Getenv(envInterface), windows: facts.OS == "windows",
		rotateToken: o.rotateToken, connectCgroup: o.connectCgroup}
	if err := o.file.Refused(foreign, &o.config); err != nil {
		return nil, err
	}
	name := strings.ToLower(strings.TrimSpace(cmp.Or(o.config.HostnameOverride, facts.Hostname)))
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, fmt.Errorf("--hostname-override=%s: want a node name such as node1.example.com", name)
	}
	s.config = kubeproxy.Config{Node: proxy.NodeInfo{Name: name}, Profiling: o.config.EnableProfiling, ConfigSync: o.config.ConfigSyncPeriod.Duration, Resync: o.config.IPTables.SyncPeriod.Duration}
	if err := o.setModes(s); err != nil {
		return nil, err
	}
	if err := o.setBackEnd(s, facts); err != nil {
		return nil, err
	}
	for _, check := range []func(*settings) error{o.setTimes, o.setRanges, o.setServers} {
		if err := check(s); err != nil {
			return nil, err
		}
	}
	if o.config.ClientConnection.Kubeconfig == "" && o.master == "" && !o.cleanup && !o.initOnly {
		return nil, fmt.Errorf("want --kubeconfig or --master")
	}
	return s, nil
}

func (o *options) setModes(s *settings) error {
	var err error
	if s.mode, err = routes.ParseMode(o.networkMode); err != nil {
		return fmt.Errorf("--network-mode: %w", err)
	}
	switch o.nextHop {
	case "node":
		s.nextHop = routes.NodeIP
	case "pod-gateway":
		s.nextHop = routes.PodGateway
	default:
		return fmt.Errorf("--route-next-hop=%s: want node or pod-gateway", o.nextHop)
	}
	return nil
}

func (o *options) setTimes(s *settings) error {
	for flag, value := range map[string]time.Duration{"config-sync-period": o.config.ConfigSyncPeriod.Duration, "udp-timeout": o.config.Conntrack.UDPStreamTimeout.Duration, "iptables-sync-period": o.config.IPTables.SyncPeriod.Duration} {
		if value <= 0 {
			return fmt.Errorf("--%s=%s: must be longer than 0", flag, value)
		}
	}
	perCore, least := *o.config.Conntrack.MaxPerCore, *o.config.Conntrack.Min
	for flag, value := range map[string]int32{"conntrack-max-per-core": perCore, "conntrack-min": least} {
		if value < 0 {
			return fmt.Errorf("--%s=%d: want 0 or more", flag, value)
		}
	}
	if perCore > 0 {
		s.tracked = max(int(least), int(perCore)*runtime.NumCPU())
	}
	if o.clientShare < 1 || o.clientShare > 100 {
		return fmt.Errorf("--client-share=%d: want a percentage from 1 to 100", o.clientShare)
	}
	return nil
}

func (o *options) setRanges(s *settings) error {
	if _, err := netip.ParseAddr(o.config.BindAddress); err != nil {
		return fmt.Errorf("--bind-address=%s: want an IP address", o.config.BindAddress)
	}
	if o.config.Winkernel.SourceVip != "" {
		if _, err := netip.ParseAddr(o.config.Winkernel.SourceVip); err != nil {
			return fmt.Errorf("--source-vip=%s: want an IP address", o.config.Winkernel.SourceVip)
		}
	}
	o.setHNS(s)
	if o.config.ClusterCIDR != "" {
		for text := range strings.SplitSeq(o.config.ClusterCIDR, ",") {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("--cluster-cidr=%s: want a range such as 10.244.0.0/16", text)
			}
			s.clusterCIDRs = append(s.clusterCIDRs, prefix.Masked())
		}
	}
	for _, text := range o.config.NodePortAddresses {
		if text == "primary" && len(o.config.NodePortAddresses) == 1 {
			addrs, err := host.NodeAddress(o.config.BindAddress)
			if err != nil {
				return fmt.Errorf("--nodeport-addresses=primary: %w", err)
			}
			for _, addr := range addrs {
				s.nodePorts = append(s.nodePorts, netip.PrefixFrom(addr, addr.BitLen()))
			}
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--nodeport-addresses=%s: want ranges such as 192.168.0.0/16, or primary", text)
		}
		s.nodePorts = append(s.nodePorts, prefix.Masked())
	}
	return nil
}

func (o *options) setServers(s *settings) error {
	if bind, err := netip.ParseAddr(o.config.BindAddress); err == nil && bind.Is6() { // as upstream, unless the user set another address
		for value, other := range map[*string][2]string{&o.config.HealthzBindAddress: {defaultHealthz, "[::]:10256"}, &o.config.MetricsBindAddress: {defaultMetrics, "[::1]:10249"}} {
			if *value == other[0] {
				*value = other[1]
			}
		}
	}
	for _, server := range []struct {
		flag, value string
		port        int
		to          *netip.AddrPort
	}{{"healthz", o.config.HealthzBindAddress, o.healthzPort, &s.config.Healthz}, {"metrics", o.config.MetricsBindAddress, o.metricsPort, &s.config.Metrics}} {
		if server.port < 0 || server.port > 65535 {
			return fmt.Errorf("--%s-port=%d: want a port from 0 to 65535", server.flag, server.port)
		}
		if server.value == "" || server.port == 0 {
			continue
		}
		addr, err := parseListen(server.value, server.port)
		if err != nil {
			return fmt.Errorf("--%s-bind-address=%s: want an address and port such as 127.0.0.1:%d", server.flag, server.value, server.port)
		}
		*server.to = addr
	}
	return nil
}

// parseListen parses an address with or without a port.
func parseListen(text string, port int) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, uint16(port)), nil
	}
	hostText, portText, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if _, err := strconv.ParseUint(portText, 10, 16); err != nil {
		return netip.AddrPort{}, err
	}
	if hostText == "" {
		hostText = "::"
	}
	return netip.ParseAddrPort(net.JoinHostPort(hostText, portText))
}
