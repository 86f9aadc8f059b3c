package balance

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	hnssim "github.com/winkube/winkube/test/windows/simulators/hns"
)

// client implements pkg/hns's Client on the simulator, with the calls that hcsshim would make.
type client struct {
	*hnssim.HNS
	log    *calls.Log
	writes int
	lists  int
	inject bool // one call in ten fails or finds no HNS
}

var none = "00000000-0000-0000-0000-000000000000"

// call executes a function and maps its error.
func (c *client) call(function string, args ...string) (string, error) {
	if err := c.injected(function); err != nil {
		return "", err
	}
	result, value, _ := c.Call(function, args)
	switch result {
	case 0:
		return value, nil
	case hnssim.ServiceNotActive:
		return "", fmt.Errorf("%s: %w", function, hns.ErrDown)
	case hnssim.NetworkNotFound, hnssim.EndpointNotFound, hnssim.ElementNotFound:
		return "", fmt.Errorf("%s: %w", function, hns.ErrNotFound)
	}
	return "", fmt.Errorf("%s: HRESULT %#x", function, uint32(result))
}

// injected fails one call in ten.
func (c *client) injected(function string) error {
	if !c.inject || !proxytest.OneInTen() {
		return nil
	}
	if proxytest.OneInTen() {
		return fmt.Errorf("%s: %w", function, hns.ErrDown)
	}
	return fmt.Errorf("%s: injected failure", function)
}

const query = `{"SchemaVersion":{"Major":2,"Minor":0}%s}`

// list returns all objects of a kind that match a filter.
func list[T any](c *client, kind, filter string) ([]T, error) {
	c.lists++
	if filter != "" {
		filter = fmt.Sprintf(`,"Filter":%q`, filter)
	}
	text, err := c.call("HcnEnumerate"+kind+"s", fmt.Sprintf(query, filter))
	if err != nil {
		return nil, err
	}
	var ids []string
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return nil, err
	}
	// Reading one list takes hundreds of calls. If each failed as often as other calls, no list would ever be complete.
	breaks, failure := rand.IntN(len(ids)+1), c.injected("HcnOpen"+kind)
	defer func(inject bool) { c.inject = inject }(c.inject)
	c.inject = false
	var out []T
	for i, id := range ids {
		if i == breaks && failure != nil {
			return nil, failure
		}
		handle, err := c.call("HcnOpen"+kind, id)
		if err != nil {
			return nil, err
		}
		text, err := c.call("HcnQuery"+kind+"Properties", handle, fmt.Sprintf(query, ""))
		if _, closing := c.call("HcnClose"+kind, handle); err == nil {
			err = closing
		}
		var one T
		if err == nil {
			err = json.Unmarshal([]byte(text), &one)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// create creates an object and returns its ID.
func (c *client) create(kind string, args ...string) (hns.ID, error) {
	c.writes++
	handle, err := c.call("HcnCreate"+kind, args...)
	if err != nil {
		return hns.ID{}, err
	}
	text, err := c.call("HcnQuery"+kind+"Properties", handle, fmt.Sprintf(query, ""))
	if err != nil {
		return hns.ID{}, err
	}
	var object struct{ ID string }
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return hns.ID{}, err
	}
	_, err = c.call("HcnClose"+kind, handle)
	return hns.IDOf(object.ID), err
}

func (c *client) remove(kind string, id hns.ID) error {
	c.writes++
	_, err := c.call("HcnDelete"+kind, id.String())
	if err != nil && strings.Contains(err.Error(), hns.ErrNotFound.Error()) {
		return nil
	}
	return err
}

func (c *client) Network(_ context.Context, name string) (hns.Network, error) {
	found, err := list[hnssim.Network](c, "Network", `{"Name":"`+name+`"}`)
	if err != nil {
		return hns.Network{}, err
	}
	if len(found) == 0 {
		return hns.Network{}, hns.ErrNotFound
	}
	n := hns.Network{ID: hns.IDOf(found[0].ID), Name: name, Overlay: found[0].Type == "Overlay", Subnet: netip.MustParsePrefix(found[0].Ipams[0].Subnets[0].IpAddressPrefix)}
	for _, p := range found[0].Policies {
		var s struct{ DestinationPrefix, ProviderAddress string }
		if p.Type == "RemoteSubnetRoute" && json.Unmarshal(p.Settings, &s) == nil { // its MAC belongs to the tunnel
			n.Remote = append(n.Remote, hns.RemoteSubnet{Prefix: netip.MustParsePrefix(s.DestinationPrefix), Provider: netip.MustParseAddr(s.ProviderAddress)})
		}
	}
	return n, nil
}

func (c *client) Endpoints(context.Context) ([]hns.Endpoint, error) {
	found, err := list[hnssim.Endpoint](c, "Endpoint", "")
	var out []hns.Endpoint
	for _, e := range found {
		one := hns.Endpoint{ID: hns.IDOf(e.ID), Network: hns.IDOf(e.HostComputeNetwork), MAC: e.MacAddress, Remote: e.Flags&1 != 0}
		for _, p := range e.Policies {
			var s struct{ ProviderAddress string }
			if p.Type == "ProviderAddress" && json.Unmarshal(p.Settings, &s) == nil {
				one.Provider = netip.MustParseAddr(s.ProviderAddress)
			}
		}
		for _, config := range e.IpConfigurations {
			one.Addrs = append(one.Addrs, netip.MustParseAddr(config.IpAddress))
		}
		out = append(out, one)
	}
	return out, err
}

func (c *client) LoadBalancers(context.Context) ([]hns.LoadBalancer, error) {
	found, err := list[hnssim.LoadBalancer](c, "LoadBalancer", "")
	var out []hns.LoadBalancer
	for _, l := range found {
		p := l.PortMappings[0]
		one := hns.LoadBalancer{ID: hns.IDOf(l.ID), Protocol: p.Protocol, ExternalPort: p.ExternalPort, InternalPort: p.InternalPort, Endpoints: hns.IDsOf(l.HostComputeEndpoints),
			DSR: l.Flags&1 != 0, IPv6: l.Flags&2 != 0, LocalRouted: p.Flags&2 != 0, ExternalIP: p.Flags&16 != 0, ClientAffinity: p.DistributionType == 2}
		if len(l.FrontendVIPs) > 0 {
			one.VIP = netip.MustParseAddr(l.FrontendVIPs[0])
		}
		if l.SourceVIP != "" {
			one.SourceVIP = netip.MustParseAddr(l.SourceVIP)
		}
		out = append(out, one)
	}
	return out, err
}

func (c *client) CreateEndpoint(_ context.Context, network hns.Network, e hns.Endpoint) (hns.ID, error) {
	document := hnssim.Endpoint{HostComputeNetwork: network.ID.String(), MacAddress: e.MAC, SchemaVersion: hnssim.Version{Major: 2}}
	for _, addr := range e.Addrs {
		document.IpConfigurations = append(document.IpConfigurations, hnssim.IPConfig{IpAddress: addr.String()})
	}
	if e.Remote {
		document.Flags = 1
	}
	if e.Provider.IsValid() {
		document.Policies = []hnssim.Policy{{Type: "ProviderAddress", Settings: json.RawMessage(`{"ProviderAddress":"` + e.Provider.String() + `"}`)}}
	}
	handle, err := c.call("HcnOpenNetwork", network.ID.String())
	if err != nil {
		return hns.ID{}, err
	}
	id, err := c.create("Endpoint", handle, none, text(document))
	if _, closing := c.call("HcnCloseNetwork", handle); err == nil {
		err = closing
	}
	return id, err
}

func (c *client) DeleteEndpoint(_ context.Context, id hns.ID) error { return c.remove("Endpoint", id) }

func document(lb hns.LoadBalancer) hnssim.LoadBalancer {
	bit := func(set bool, flag uint32) uint32 {
		if set {
			return flag
		}
		return 0
	}
	d := hnssim.LoadBalancer{Flags: bit(lb.DSR, 1) | bit(lb.IPv6, 2), SchemaVersion: hnssim.Version{Major: 2},
		PortMappings: []hnssim.PortMapping{{Protocol: lb.Protocol, InternalPort: lb.InternalPort, ExternalPort: lb.ExternalPort,
			DistributionType: bit(lb.ClientAffinity, 2), Flags: bit(lb.LocalRouted, 2) | bit(lb.ExternalIP, 16)}}}
	for _, id := range lb.Endpoints {
		d.HostComputeEndpoints = append(d.HostComputeEndpoints, id.String())
	}
	if lb.VIP.IsValid() {
		d.FrontendVIPs = []string{lb.VIP.String()}
	}
	if lb.SourceVIP.IsValid() {
		d.SourceVIP = lb.SourceVIP.String()
	}
	return d
}

func (c *client) CreateLoadBalancer(_ context.Context, lb hns.LoadBalancer) (hns.ID, error) {
	return c.create("LoadBalancer", none, text(document(lb)))
}

func (c *client) ReplaceLoadBalancer(ctx context.Context, lb hns.LoadBalancer) (hns.ID, error) {
	handle, err := c.call("HcnOpenLoadBalancer", lb.ID.String())
	if err == nil {
		_, err = c.call("HcnModifyLoadBalancer", handle, text(document(lb)))
		if _, closing := c.call("HcnCloseLoadBalancer", handle); err == nil && closing == nil {
			c.writes++
			return lb.ID, nil
		}
	}
	if err := c.DeleteLoadBalancer(ctx, lb.ID); err != nil {
		return hns.ID{}, err
	}
	return c.CreateLoadBalancer(ctx, lb)
}

func (c *client) DeleteLoadBalancer(_ context.Context, id hns.ID) error {
	return c.remove("LoadBalancer", id)
}

func text(value any) string {
	b, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// reach returns the endpoint addresses of the load balancer at a front.
func (c *client) reach(protocol uint32, front netip.AddrPort) []netip.AddrPort {
	balancers, err := list[hnssim.LoadBalancer](c, "LoadBalancer", "")
	endpoints, more := list[hnssim.Endpoint](c, "Endpoint", "")
	if err != nil || more != nil {
		panic(fmt.Sprint(err, more))
	}
	var out []netip.AddrPort
	for _, l := range balancers {
		p := l.PortMappings[0]
		if p.Protocol != protocol || p.ExternalPort != front.Port() || !slices.Contains(l.FrontendVIPs, front.Addr().String()) {
			continue
		}
		for _, e := range endpoints {
			if slices.Contains(l.HostComputeEndpoints, e.ID) {
				out = append(out, netip.AddrPortFrom(netip.MustParseAddr(e.IpConfigurations[0].IpAddress), p.InternalPort))
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// forgetful is an HNS that does not report session affinity and, if ports is set, reports another port.
type forgetful struct {
	*client
	ports bool
}

func (f *forgetful) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	all, err := f.client.LoadBalancers(ctx)
	for i := range all {
		all[i].ClientAffinity = false
		if f.ports {
			all[i].InternalPort++
		}
	}
	return all, err
}
