package dockertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/network"
)

// nowhere is the context of a hijacked session: only the connection can end its request.
var nowhere = context.Background()

// segment is one network.
type segment struct {
	network.Inspect
	used map[netip.Addr]string // container by address
}

func (e *Engine) addDefaultNetworks() {
	if e.opts.windows() {
		e.addNetwork(network.Inspect{Name: "nat", Driver: "nat"}, "172.20.0.0/16")
		e.addNetwork(network.Inspect{Name: "none", Driver: "null"}, "")
		return
	}
	e.addNetwork(network.Inspect{Name: "bridge", Driver: "bridge"}, "172.17.0.0/16")
	e.addNetwork(network.Inspect{Name: "host", Driver: "host"}, "")
	e.addNetwork(network.Inspect{Name: "none", Driver: "null"}, "")
}

func (e *Engine) addNetwork(n network.Inspect, subnet string) *segment {
	n.ID, n.Scope, n.Created = e.nextID(), "local", e.clock.Now()
	if subnet != "" {
		n.IPAM.Config = []network.IPAMConfig{{Subnet: subnet}}
	}
	for i := range n.IPAM.Config {
		if config := &n.IPAM.Config[i]; config.Gateway == "" {
			if prefix, err := netip.ParsePrefix(config.Subnet); err == nil {
				config.Gateway = prefix.Masked().Addr().Next().String()
			}
		}
	}
	s := &segment{Inspect: n, used: map[netip.Addr]string{}}
	e.networks[n.ID] = s
	return s
}

// inspect returns the API's description of the network, with the containers on it.
func (s *segment) inspect() network.Inspect {
	out := s.Inspect
	out.Containers = map[string]network.EndpointResource{}
	for addr, id := range s.used {
		out.Containers[id] = network.EndpointResource{IPv4Address: addr.String() + "/24"}
	}
	return out
}

func (e *Engine) findNetwork(key string) *segment {
	if s := e.networks[key]; s != nil {
		return s
	}
	for _, s := range e.networks {
		if s.Name == key {
			return s
		}
	}
	return nil
}

func (e networkAPI) network(w http.ResponseWriter, r *http.Request, id, verb string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Method == http.MethodGet && id == "" {
		list := []network.Inspect{}
		for _, s := range e.networks {
			list = append(list, s.Inspect)
		}
		slices.SortFunc(list, func(a, b network.Inspect) int { return strings.Compare(a.ID, b.ID) })
		answer(w, http.StatusOK, list)
		return
	}
	if r.Method == http.MethodPost && id == "create" {
		e.createNetwork(w, r)
		return
	}
	s := e.findNetwork(id)
	switch {
	case s == nil:
		refuse(w, http.StatusNotFound, "network %s not found", id)
	case r.Method == http.MethodPost && (verb == "connect" || verb == "disconnect"):
		e.rewire(w, r, s, verb)
	case r.Method == http.MethodGet:
		answer(w, http.StatusOK, s.inspect())
	case r.Method == http.MethodDelete && slices.Contains([]string{"bridge", "host", "none", "nat"}, s.Name):
		refuse(w, http.StatusForbidden, "%s is a pre-defined network and cannot be removed", s.Name)
	case r.Method == http.MethodDelete && len(s.used) > 0:
		refuse(w, http.StatusForbidden, "error while removing network: network %s id %s has active endpoints", s.Name, s.ID)
	case r.Method == http.MethodDelete:
		delete(e.networks, s.ID)
		w.WriteHeader(http.StatusNoContent)
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

func (e networkAPI) createNetwork(w http.ResponseWriter, r *http.Request) {
	var body network.CreateRequest
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Name == "" {
		refuse(w, http.StatusBadRequest, "invalid network request")
		return
	}
	if s := e.findNetwork(body.Name); s != nil {
		refuse(w, http.StatusConflict, "network with name %s already exists", body.Name)
		return
	}
	drivers := []string{"bridge", "overlay", "macvlan", "ipvlan"}
	if e.opts.windows() {
		drivers = []string{"nat", "transparent", "l2bridge", "l2tunnel", "overlay"}
	}
	if !slices.Contains(drivers, body.Driver) {
		refuse(w, http.StatusNotFound, "plugin %q not found", body.Driver)
		return
	}
	n := network.Inspect{Name: body.Name, Driver: body.Driver, Options: body.Options, Labels: body.Labels}
	if body.IPAM != nil {
		n.IPAM = *body.IPAM
	}
	n.EnableIPv6 = body.EnableIPv6 != nil && *body.EnableIPv6
	for _, config := range n.IPAM.Config {
		prefix, err := netip.ParsePrefix(config.Subnet)
		if err != nil {
			refuse(w, http.StatusBadRequest, "invalid subnet %s", config.Subnet)
			return
		}
		for _, other := range e.networks {
			for _, theirs := range other.IPAM.Config {
				if p, err := netip.ParsePrefix(theirs.Subnet); err == nil && p.Overlaps(prefix) {
					refuse(w, http.StatusForbidden, "Pool overlaps with other one on this address space")
					return
				}
			}
		}
	}
	if len(n.IPAM.Config) == 0 {
		e.serial++
		n.IPAM.Config = []network.IPAMConfig{{Subnet: fmt.Sprintf("172.%d.%d.0/24", 30+e.serial%100, e.serial%256)}}
	}
	answer(w, http.StatusCreated, network.CreateResponse{ID: e.addNetwork(n, "").ID})
}

// connect assigns a starting container its address; the message is the engine's refusal.
func (e *Engine) connect(b *box) string {
	mode := b.host.NetworkMode
	if mode.IsContainer() || mode == "host" || mode.IsNone() {
		return ""
	}
	s := e.findNetwork(string(mode))
	if s == nil {
		return fmt.Sprintf("network %s not found", mode)
	}
	b.endpoint = s
	for _, config := range s.IPAM.Config {
		prefix, err := netip.ParsePrefix(config.Subnet)
		if err != nil || !prefix.Addr().Is4() {
			continue
		}
		for addr := prefix.Masked().Addr().Next(); prefix.Contains(addr) && prefix.Contains(addr.Next()); addr = addr.Next() {
			if _, taken := s.used[addr]; !taken && addr.String() != config.Gateway {
				s.used[addr], b.address = b.id, addr.String()
				return ""
			}
		}
		return "no available IPv4 addresses on this network's address pools: " + s.Name
	}
	return ""
}

// rewire disconnects a container from a network or connects it, with the requested IPv4 address.
func (e networkAPI) rewire(w http.ResponseWriter, r *http.Request, s *segment, verb string) {
	var body network.ConnectOptions // also fits DisconnectOptions, which have fewer fields
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		refuse(w, http.StatusBadRequest, "invalid request: %v", err)
		return
	}
	b := e.lookup(body.Container)
	switch {
	case b == nil:
		refuse(w, http.StatusNotFound, "No such container: %s", body.Container)
		return
	case verb == "disconnect" && b.endpoint != s:
		refuse(w, http.StatusForbidden, "container %s is not connected to network %s", b.name, s.Name)
		return
	case verb == "disconnect":
		b.disconnect()
	case b.endpoint == s:
		refuse(w, http.StatusForbidden, "endpoint with name %s already exists in network %s", b.name, s.Name)
		return
	default:
		if body.EndpointConfig == nil || body.EndpointConfig.IPAMConfig == nil {
			refuse(w, http.StatusNotImplemented, "connect without an address")
			return
		}
		addr, err := netip.ParseAddr(body.EndpointConfig.IPAMConfig.IPv4Address)
		if _, taken := s.used[addr]; err != nil || taken {
			refuse(w, http.StatusForbidden, "Address already in use")
			return
		}
		b.endpoint, b.address, s.used[addr] = s, addr.String(), b.id
	}
	e.tell(events.NetworkEventType, events.Action(verb), events.Actor{ID: s.ID, Attributes: map[string]string{"container": b.id, "name": s.Name, "type": s.Driver}})
	w.WriteHeader(http.StatusOK)
}

// disconnect releases the address.
func (b *box) disconnect() {
	if b.endpoint == nil {
		return
	}
	if addr, err := netip.ParseAddr(b.address); err == nil {
		delete(b.endpoint.used, addr)
	}
	b.endpoint, b.address = nil, ""
}
