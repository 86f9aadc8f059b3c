package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/versions"
)

// ownStore is the part of dockerd.exe's stores that the Linux engine does not have.
type ownStore struct {
	// Adopted are existing HNS networks that the engine took over, by ID.
	Adopted map[string]adopted
	// Again are the engine's own networks that it found at a restart, by ID: their new labels and options.
	Again map[string]again
	// Ended are exit codes of containers that ended with the engine, by ID.
	Ended map[string]int64
}

// Exit codes of containers that end with dockerd.exe.
const (
	stopped = 0xC000013A // STATUS_CONTROL_C_EXIT: dockerd.exe was stopped (test/windows/suites/outsiders/testdata/dockerd-28.golden)
	lost    = 255        // dockerd.exe was killed and does not know the code (moby daemon/daemon.go restore)
)

type adopted struct {
	Name, Driver string
	Options      map[string]string
	Subnets      []network.IPAMConfig
}

type again struct {
	Options   map[string]string
	Labelless bool
}

// keepsLabels is the first Docker version that keeps a network's labels across a restart (moby/moby 25009ed5c0).
const keepsLabels = "27.5"

func (e *Engine) storePath() string {
	return filepath.Join(e.opts.Drive, "ProgramData", "docker-networks.json")
}

// store reads the store. It is empty if there is no drive.
func (e *Engine) store() ownStore {
	k := ownStore{Adopted: map[string]adopted{}, Again: map[string]again{}, Ended: map[string]int64{}}
	text, err := os.ReadFile(e.storePath())
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.fault("the store: %v", err)
	}
	return k
}

func (e *Engine) keep(k ownStore) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(e.storePath()), 0o755); err != nil {
		return err
	}
	next := e.storePath() + ".next" // requests read the store meanwhile
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return err
	}
	return os.Rename(next, e.storePath())
}

// endContainers ends the running containers. dockerd.exe does so when it stops. What it left running when it was killed it ends at its next start,
// since it cannot attach to a container again (moby libcontainerd/local/local_windows.go LoadContainer).
func (e *Engine) endContainers(ctx context.Context, code int64) error {
	running, err := e.running(ctx)
	if err != nil || len(running) == 0 {
		return err
	}
	k := e.store()
	for id := range running {
		if _, _, err := e.do(ctx, http.MethodPost, "/containers/"+id+"/kill", nil); err != nil {
			return err
		}
		k.Ended[id] = code
	}
	return e.keep(k)
}

// begun forgets the exit code of a container that runs again.
func (e *Engine) begun(id string) error {
	k := e.store()
	if _, ok := k.Ended[id]; !ok {
		return nil
	}
	delete(k.Ended, id)
	return e.keep(k)
}

// rediscover compares the engine's networks with those of HNS, as dockerd.exe does at its start (moby daemon/daemon_windows.go
// initNetworkController). IDs are those of HNS's first interface and compared case-sensitively. A network that it finds keeps its options, and its
// labels from 27.5 on. One that is missing in HNS is removed. An unknown HNS network is adopted: its options are HNS's name and ID, and it has no
// labels. In all networks it removes the endpoints that it finds (libnetwork/drivers/windows CreateNetwork).
func (e *Engine) rediscover(ctx context.Context) error {
	var inHNS []hnsNetwork
	if err := e.hns("GET", "/networks/", nil, &inHNS); err != nil {
		return err
	}
	var own []struct {
		ID     string `json:"Id"`
		Name   string
		Labels map[string]string
	}
	if err := e.ask(ctx, "/networks", &own); err != nil {
		return err
	}
	before := e.store()
	now := ownStore{Adopted: map[string]adopted{}, Again: map[string]again{}, Ended: before.Ended}
	known, names := map[string]bool{"nat": true}, map[string]bool{}
	for _, n := range own {
		var k keptNetwork
		if json.Unmarshal([]byte(n.Labels[keptLabel]), &k) != nil || k.Driver == "null" {
			continue
		}
		if was, ok := before.Again[n.ID]; ok {
			k.Options = was.Options
		}
		options, there, err := e.found(k, n.ID, inHNS)
		switch {
		case err != nil:
			return err
		case there == "":
			_, _, _ = e.do(ctx, http.MethodDelete, "/networks/"+n.ID, nil)
			continue
		}
		now.Again[n.ID] = again{Options: options, Labelless: before.Again[n.ID].Labelless || versions.LessThan(e.facts.docker, keepsLabels) || options[optionID] != k.Options[optionID] && k.Options[optionID] != ""}
		known[there], names[n.Name] = true, true
		if err := e.removeStale(there); err != nil {
			return err
		}
	}
	for _, n := range inHNS {
		kind := strings.ToLower(n.Type)
		if known[n.ID] || names[n.Name] || n.Name == "nat" || !slices.Contains([]string{"l2bridge", "l2tunnel", "transparent", "nat"}, kind) {
			continue
		}
		one := adopted{Name: n.Name, Driver: kind, Options: e.adoptedOptions(n)}
		for _, s := range n.Subnets {
			one.Subnets = append(one.Subnets, network.IPAMConfig{Subnet: s.AddressPrefix, Gateway: s.GatewayAddress})
		}
		now.Adopted[n.ID] = one
		if err := e.removeStale(n.ID); err != nil {
			return err
		}
	}
	return e.keep(now)
}

// adoptedOptions returns the options of an adopted network. Docker marks it from 28 on, so that prune spares the network (moby
// libnetwork/drivers/windows/labels.go HNSOwned, which 25.0.6 does not have).
func (e *Engine) adoptedOptions(n hnsNetwork) map[string]string {
	options := map[string]string{optionName: n.Name, optionID: n.ID}
	if !versions.LessThan(e.facts.docker, "28") {
		options[optionOwned] = "true"
	}
	return options
}

// found looks for one of the engine's networks in HNS. It returns the network's new options and its ID in HNS, or "" if
// it is missing.
func (e *Engine) found(k keptNetwork, id string, inHNS []hnsNetwork) (options map[string]string, there string, err error) {
	given := k.Options[optionID]
	for _, n := range inHNS {
		switch {
		case given == n.ID, given == "" && strings.EqualFold(n.Name, k.nameInHNS(id)):
			options = map[string]string{optionID: n.ID, optionName: n.Name}
			for key, value := range k.Options {
				options[key] = value
			}
			return options, n.ID, nil
		case given != "" && strings.EqualFold(given, n.ID): // dropped, then adopted like a foreign network
			return e.adoptedOptions(n), n.ID, nil
		}
	}
	return nil, "", nil
}

// removeStale removes the endpoints of a network, including the host's own.
func (e *Engine) removeStale(id string) error {
	var all []hnsEndpoint
	if err := e.hns("GET", "/endpoints/", nil, &all); err != nil {
		return err
	}
	for _, one := range all {
		if one.VirtualNetwork != id {
			continue
		}
		if err := e.hns("DELETE", "/endpoints/"+one.ID, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// adoptedNetworks returns the adopted networks in the engine's list format, sorted.
func (e *Engine) adoptedNetworks() (out []map[string]any) {
	for id, n := range e.store().Adopted {
		out = append(out, map[string]any{"Id": strings.ToLower(strings.ReplaceAll(id, "-", "")), "Name": n.Name, "Driver": n.Driver, "Scope": "local", "Options": n.Options,
			"Labels": map[string]string{}, "Containers": map[string]any{}, "IPAM": network.IPAM{Driver: "default", Config: n.Subnets}})
	}
	slices.SortFunc(out, func(a, b map[string]any) int { return strings.Compare(a["Name"].(string), b["Name"].(string)) })
	return out
}

// serveAdopted serves a request about an adopted network, by name or ID. It returns false if there is none.
func (e *Engine) serveAdopted(w http.ResponseWriter, r *http.Request, id string) bool {
	for _, n := range e.adoptedNetworks() {
		if n["Name"] != id && n["Id"] != id {
			continue
		}
		if r.Method != http.MethodDelete {
			answer(w, http.StatusOK, n)
			return true
		}
		k, inHNS := e.store(), n["Options"].(map[string]string)[optionID]
		delete(k.Adopted, inHNS)
		if err := errors.Join(e.hns("DELETE", "/networks/"+inHNS, nil, nil), e.keep(k)); err != nil {
			refuse(w, http.StatusForbidden, err.Error())
			return true
		}
		w.WriteHeader(http.StatusNoContent)
		return true
	}
	return false
}

// refuseAdopted refuses to create a network with the name of an adopted one. Source of the message: moby daemon/libnetwork NetworkNameError.
func (e *Engine) refuseAdopted(w http.ResponseWriter, name string) bool {
	taken := slices.ContainsFunc(e.adoptedNetworks(), func(n map[string]any) bool { return n["Name"] == name })
	if taken {
		refuse(w, http.StatusConflict, fmt.Sprintf("network with name %s already exists", name))
	}
	return taken
}
