// Package networks gives access to an engine's networks, which package network plans.
//
//	pod.EngineNetwork --EnsureNetwork--> adopted, created, or *Conflict
package networks

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// Store accesses the networks of one engine. All methods may be called concurrently.
type Store struct {
	engine *engine.Client
	node   identity.Node
	os     string
}

// New returns a Store of e, whose networks carry node's label; os is the system of e's host, linux or windows.
func New(e *engine.Client, node identity.Node, os string) *Store {
	return &Store{engine: e, node: node, os: os}
}

// Conflict says that the engine has a different network under the wanted name. It is never recreated: containers may be using it.
type Conflict struct {
	Name       string
	Difference string // actual and wanted
}

// Error returns the difference and what to do.
func (c *Conflict) Error() string {
	return fmt.Sprintf("cannot use network %q of the engine: %s; stop the containers on it and remove it, or choose another name", c.Name, c.Difference)
}

// Networks lists the engine's networks, sorted by name.
func (n *Store) Networks(ctx context.Context) ([]pod.EngineNetwork, error) {
	var list []network.Summary
	err := n.engine.Call(ctx, "list networks", func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.NetworkList(ctx, network.ListOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []pod.EngineNetwork
	for _, n := range list {
		out = append(out, engineNetwork(n))
	}
	slices.SortFunc(out, func(a, b pod.EngineNetwork) int { return strings.Compare(a.Name+"\x00"+a.ID, b.Name+"\x00"+b.ID) })
	return out, nil
}

func engineNetwork(n network.Summary) pod.EngineNetwork {
	out := pod.EngineNetwork{Name: n.Name, ID: n.ID, Driver: n.Driver, Options: n.Options, Labels: n.Labels}
	for _, config := range n.IPAM.Config {
		subnet, err := netip.ParsePrefix(config.Subnet)
		if err != nil {
			continue
		}
		gateway, _ := netip.ParseAddr(config.Gateway) // may be missing
		out.Subnets, out.Gateways = append(out.Subnets, subnet), append(out.Gateways, gateway)
	}
	return out
}

// EnsureNetwork creates the network or adopts an existing one. An existing one must have the same name, driver, subnets and gateways, and at least
// want's options. Any other is left alone and is a *Conflict. Labels are set only at creation.
func (n *Store) EnsureNetwork(ctx context.Context, want pod.EngineNetwork) error {
	for range 2 {
		all, err := n.Networks(ctx)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(n pod.EngineNetwork) bool { return n.Name == want.Name }); i >= 0 {
			if difference := differs(all[i], want); difference != "" {
				return &Conflict{Name: want.Name, Difference: difference}
			}
			return nil
		}
		if err = n.create(ctx, want); !cerrdefs.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("cannot create network %q: the engine reports both that it exists and that it does not", want.Name)
}

func (n *Store) create(ctx context.Context, want pod.EngineNetwork) error {
	options := network.CreateOptions{Driver: want.Driver, Options: want.Options, Labels: map[string]string{identity.LabelNode: string(n.node)}}
	maps.Copy(options.Labels, want.Labels)
	if len(want.Subnets) > 0 {
		options.IPAM = &network.IPAM{Driver: "default"}
		if n.os == "windows" {
			options.IPAM.Driver = "windows"
		}
	}
	for i, subnet := range want.Subnets {
		config := network.IPAMConfig{Subnet: subnet.String()}
		if i < len(want.Gateways) && want.Gateways[i].IsValid() {
			config.Gateway = want.Gateways[i].String()
		}
		options.IPAM.Config = append(options.IPAM.Config, config)
		if subnet.Addr().Is6() {
			enabled := true
			options.EnableIPv6 = &enabled
		}
	}
	return n.engine.Call(ctx, fmt.Sprintf("create network %q", want.Name), func(ctx context.Context, c *client.Client) error {
		_, err := c.NetworkCreate(ctx, want.Name, options)
		return err
	})
}

// differs describes in words what have lacks of want; "": nothing. It ignores options and labels that the engine adds.
func differs(have, want pod.EngineNetwork) string {
	if have.Driver != want.Driver {
		return fmt.Sprintf("its driver is %s, want %s", have.Driver, want.Driver)
	}
	if len(want.Subnets) > 0 && !sameSet(have.Subnets, want.Subnets) {
		return fmt.Sprintf("its subnets are %v, want %v", have.Subnets, want.Subnets)
	}
	for i, gateway := range want.Gateways {
		if i >= len(want.Subnets) || !gateway.IsValid() {
			continue
		}
		if at := slices.Index(have.Subnets, want.Subnets[i]); have.Gateways[at] != gateway {
			return fmt.Sprintf("the gateway of its subnet %s is %s, want %s", want.Subnets[i], have.Gateways[at], gateway)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want.Options)) {
		if value, ok := have.Options[key]; !ok || value != want.Options[key] {
			return fmt.Sprintf("its option %s is %q, want %q", key, value, want.Options[key])
		}
	}
	return ""
}

func sameSet(a, b []netip.Prefix) bool {
	order := func(x, y netip.Prefix) int { return strings.Compare(x.String(), y.String()) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}

// RemoveNetwork deletes a network; a missing network is not an error. It fails while containers use it.
func (n *Store) RemoveNetwork(ctx context.Context, name string) error {
	err := n.engine.Call(ctx, fmt.Sprintf("remove network %q", name), func(ctx context.Context, c *client.Client) error {
		return c.NetworkRemove(ctx, name)
	})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Members returns the running containers that have their own addresses in a network, by ID. A missing network has none.
func (n *Store) Members(ctx context.Context, name string) (map[string][]netip.Addr, error) {
	var found network.Inspect
	err := n.engine.Call(ctx, fmt.Sprintf("inspect network %q", name), func(ctx context.Context, c *client.Client) (err error) {
		found, err = c.NetworkInspect(ctx, name, network.InspectOptions{})
		return err
	})
	if cerrdefs.IsNotFound(err) {
		return nil, nil
	}
	members := map[string][]netip.Addr{}
	for id, one := range found.Containers {
		for _, text := range []string{one.IPv4Address, one.IPv6Address} {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				members[id] = append(members[id], prefix.Addr())
			}
		}
	}
	return members, err
}

// Connect connects a running container to a network, with these addresses. It fails if one of them is in use by now, or if the engine chose the
// network's range itself.
func (n *Store) Connect(ctx context.Context, name, id string, addrs []netip.Addr) error {
	settings := &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{}}
	for _, addr := range addrs {
		if addr.Is4() {
			settings.IPAMConfig.IPv4Address = addr.String()
		} else {
			settings.IPAMConfig.IPv6Address = addr.String()
		}
	}
	return n.engine.Call(ctx, fmt.Sprintf("connect container %.12s to network %q", id, name), func(ctx context.Context, c *client.Client) error {
		return c.NetworkConnect(ctx, name, id, settings)
	})
}
