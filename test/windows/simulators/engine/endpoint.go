package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/docker/docker/api/types/network"
)

// attach creates an endpoint in the HNS network of each network that a started container joins. Containers that share
// another's network get none. Source: moby libnetwork/drivers/windows/windows.go CreateEndpoint.
func (e *Engine) attach(ctx context.Context, id string) error {
	var c struct {
		ID              string `json:"Id"`
		NetworkSettings struct {
			Networks map[string]struct{ NetworkID, IPAddress, MacAddress string }
		}
	}
	e.endpoints.Lock() // taken before the check: Watch detaches a container that exits later, once the lock is free
	defer e.endpoints.Unlock()
	if err := e.ask(ctx, "/containers/"+url.PathEscape(id)+"/json", &c); err != nil {
		return err
	}
	defer e.joined.Store(c.ID, true)
	if err := e.begun(c.ID); err != nil {
		return err
	}
	if err := e.detachEnded(ctx); err != nil { // the Linux engine may have reused their addresses
		return err
	}
	for name, n := range c.NetworkSettings.Networks {
		if n.IPAddress == "" {
			continue
		}
		k, id, err := e.keptNetwork(ctx, name)
		if err != nil {
			return err
		}
		of, err := e.inHNS(k.nameInHNS(id))
		if err != nil {
			return err
		}
		if since, ok := e.store().Again[id]; ok {
			k.Options = since.Options
		}
		endpoint := hnsEndpoint{VirtualNetwork: of.ID, IPAddress: n.IPAddress, MacAddress: n.MacAddress, Policies: k.endpointPolicies()}
		if err := e.hns("POST", "/endpoints/", endpoint, &endpoint); err != nil {
			return err
		}
		if err := e.hns("POST", "/endpoints/"+endpoint.ID+"/attach", map[string]string{"ContainerId": c.ID, "SystemType": "Container"}, nil); err != nil {
			return err
		}
	}
	return nil
}

// hostItself represents the host among the endpoint holders (package hns). HNS removes the host's endpoint itself.
const hostItself = "host"

// detach removes the endpoints of containers for which gone returns true. The caller holds the lock.
func (e *Engine) detach(gone func(container string) bool) error {
	var all []hnsEndpoint
	if err := e.hns("GET", "/endpoints/", nil, &all); err != nil {
		return err
	}
	for _, one := range all {
		if !slices.Contains(one.SharedContainers, hostItself) && slices.ContainsFunc(one.SharedContainers, gone) {
			if err := e.hns("DELETE", "/endpoints/"+one.ID, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// detachEnded does so for exited containers that Watch has not handled yet. The caller holds the lock.
func (e *Engine) detachEnded(ctx context.Context) error {
	running, err := e.running(ctx)
	if err != nil {
		return err
	}
	return e.detach(func(holder string) bool { return !running[holder] })
}

// keptNetwork returns a network as the client created it, and its ID. The name may also be the Linux network's ID.
func (e *Engine) keptNetwork(ctx context.Context, name string) (keptNetwork, string, error) {
	if name == natBeneath {
		return keptNetwork{Driver: "nat", Options: map[string]string{optionName: "nat"}}, "", nil
	}
	var n struct {
		ID     string `json:"Id"`
		Labels map[string]string
	}
	if err := e.ask(ctx, "/networks/"+url.PathEscape(name), &n); err != nil {
		return keptNetwork{}, "", err
	}
	var k keptNetwork
	err := json.Unmarshal([]byte(n.Labels[keptLabel]), &k)
	return k, n.ID, err
}

// Watch does what dockerd.exe does on its own. At its start it ends containers that still run, creates the network nat if it is missing and
// removes stale endpoints (moby daemon/daemon_windows.go initNetworkController, libnetwork's CreateNetwork). Later it removes the endpoints of
// containers that exit. It calls ready once it watches. When ctx ends it ends all containers. It returns then (nil), or when the Linux engine stops.
func (e *Engine) Watch(ctx context.Context, ready func()) error {
	filter := `{"type":["container"],"event":["die"]}`
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/events?filters="+url.QueryEscape(filter), nil)
	if err != nil {
		return err
	}
	response, err := e.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := e.discover(ctx); err != nil {
		return err
	}
	ready()
	for decoder := json.NewDecoder(response.Body); ; {
		var event struct{ Actor struct{ ID string } }
		if err := decoder.Decode(&event); err != nil {
			if ctx.Err() != nil {
				return e.shutDown()
			}
			return fmt.Errorf("the engine beneath has ended: %w", err)
		}
		e.endpoints.Lock()
		if !e.isRunning(ctx, event.Actor.ID) {
			e.joined.Delete(event.Actor.ID)
			_ = e.detach(func(holder string) bool { return holder == event.Actor.ID }) // HNS may be down: the next start tries again
		}
		e.endpoints.Unlock()
	}
}

// shutDown ends all containers and removes their endpoints.
func (e *Engine) shutDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e.endpoints.Lock()
	defer e.endpoints.Unlock()
	if err := e.endContainers(ctx, stopped); err != nil {
		return err
	}
	_ = e.detach(func(string) bool { return true }) // HNS may be down: the next start tries again
	return nil
}

func (e *Engine) discover(ctx context.Context) error {
	if _, err := e.inHNS("nat"); err != nil {
		var bridge struct{ IPAM network.IPAM }
		if err := e.ask(ctx, "/networks/"+natBeneath, &bridge); err != nil {
			return err
		}
		if err := e.hns("POST", "/networks/", hnsNetwork{Name: "nat", Type: "nat", Subnets: subnets(bridge.IPAM.Config)}, nil); err != nil {
			return err
		}
	}
	e.endpoints.Lock()
	defer e.endpoints.Unlock()
	if err := e.endContainers(ctx, lost); err != nil {
		return err
	}
	if err := e.detach(func(string) bool { return true }); err != nil {
		return err
	}
	return e.rediscover(ctx)
}

// isRunning inspects one container: the engine announces an exit before its list of containers has it (moby handleContainerExit).
func (e *Engine) isRunning(ctx context.Context, id string) bool {
	var c struct{ State struct{ Running bool } }
	return e.ask(ctx, "/containers/"+url.PathEscape(id)+"/json", &c) == nil && c.State.Running
}

// running returns the IDs of the running Linux containers.
func (e *Engine) running(ctx context.Context) (map[string]bool, error) {
	var list []struct {
		ID string `json:"Id"`
	}
	if err := e.ask(ctx, "/containers/json", &list); err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, one := range list {
		ids[one.ID] = true
	}
	return ids, nil
}
