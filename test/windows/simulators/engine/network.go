package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/versions"
)

// drivers are the network drivers of Windows. Source: moby libnetwork/drivers_windows.go and drivers/windows
// RegisterBuiltinLocalDrivers.
var drivers = []string{"ics", "internal", "l2bridge", "l2tunnel", "nat", "null", "overlay", "private", "transparent"}

// keptNetwork is a network as the client created it.
type keptNetwork struct {
	Driver  string
	Options map[string]string
	IPAM    *network.IPAM
}

// createNetwork creates a Linux bridge for each kind of network. It does not model how packets travel: HNS does.
func (e *Engine) createNetwork(w http.ResponseWriter, r *http.Request, _ string) {
	var body network.CreateRequest
	if !e.read(w, r, &body) {
		return
	}
	if body.Driver == "" {
		body.Driver = "nat" // libnetwork's default driver on Windows
	}
	switch {
	case body.Name == "":
		refuse(w, http.StatusBadRequest, "invalid name: name is empty") // libnetwork/error.go ErrInvalidName
		return
	case slices.Contains([]string{"nat", "none", "default"}, body.Name): // moby daemon/network.go createNetwork
		refuse(w, http.StatusForbidden, fmt.Sprintf("operation is not permitted on predefined %s network ", body.Name))
		return
	case body.Driver == "overlay": // while the host is not in a swarm: same source
		refuse(w, http.StatusForbidden, `This node is not a swarm manager. Use "docker swarm init" or "docker swarm join" to connect this node to swarm and try again.`)
		return
	case !slices.Contains(drivers, body.Driver):
		refuse(w, http.StatusNotFound, fmt.Sprintf("could not find plugin %s in v1 plugin registry: plugin not found", body.Driver))
		return
	}
	if body.IPAM != nil {
		for _, config := range body.IPAM.Config {
			if prefix, err := netip.ParsePrefix(config.Subnet); err == nil && prefix.Addr().Is6() {
				refuse(w, http.StatusInternalServerError, e.noIPv6())
				return
			}
		}
	}
	if e.refuseAdopted(w, body.Name) {
		return
	}
	k := keptNetwork{body.Driver, body.Options, body.IPAM}
	label, err := json.Marshal(k)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	beneath := network.CreateRequest{Name: body.Name, CreateOptions: network.CreateOptions{Driver: "bridge", Labels: map[string]string{keptLabel: string(label)}, Options: map[string]string{}}}
	for key, value := range body.Labels {
		beneath.Labels[key] = value
	}
	if body.Driver != "nat" && body.Driver != "ics" {
		beneath.Options["com.docker.network.bridge.enable_ip_masquerade"] = "false"
	}
	if body.IPAM != nil {
		beneath.IPAM = &network.IPAM{Driver: "default", Config: slices.Clone(body.IPAM.Config)}
		reserveFirst(beneath.IPAM.Config)
	}
	status, text, err := e.do(r.Context(), http.MethodPost, "/networks/create", beneath)
	if err == nil && status == http.StatusCreated {
		var created struct {
			ID string `json:"Id"`
		}
		if err = json.Unmarshal(text, &created); err == nil {
			err = e.createInHNS(created.ID, k)
		}
		if err != nil {
			_, _, _ = e.do(context.WithoutCancel(r.Context()), http.MethodDelete, "/networks/"+created.ID, nil)
		}
	}
	relay(w, status, text, err)
}

// reserveFirst reserves the first address of each range, as HNS does.
func reserveFirst(configs []network.IPAMConfig) {
	for i := range configs {
		prefix, err := netip.ParsePrefix(configs[i].Subnet)
		if first := prefix.Addr().Next().String(); err == nil && configs[i].Gateway != first {
			configs[i].AuxAddress = map[string]string{"hns": first}
		}
	}
}

func (e *Engine) network(w http.ResponseWriter, r *http.Request, id string) {
	if id == "nat" {
		if r.Method == http.MethodDelete {
			refuse(w, http.StatusForbidden, "nat is a pre-defined network and cannot be removed")
			return
		}
		id = natBeneath
		r.URL.Path = "/networks/" + natBeneath
	}
	if e.serveAdopted(w, r, id) {
		return
	}
	var found map[string]any
	if err := e.ask(r.Context(), "/networks/"+url.PathEscape(id), &found); err == nil && !e.rewriteNetwork(found) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("network %s not found", id))
		return
	}
	k, full, err := e.keptNetwork(r.Context(), id)
	if err != nil || r.Method != http.MethodDelete || e.opts.HNS == nil {
		e.forward(w, r)
		return
	}
	status, text, err := e.do(r.Context(), http.MethodDelete, "/networks/"+full, nil)
	if err == nil && status == http.StatusNoContent {
		err = e.removeFromHNS(k.nameInHNS(full))
	}
	relay(w, status, text, err)
}

func (e *Engine) connect(w http.ResponseWriter, r *http.Request, id string) {
	if id == "nat" {
		r.URL.Path = "/networks/" + natBeneath + r.URL.Path[len(r.URL.Path)-len("/connect"):]
	}
	e.forward(w, r)
}

// rewriteNetwork turns a Linux network into a Windows network. It returns false if Windows has no such network.
func (e *Engine) rewriteNetwork(v map[string]any) bool {
	labels, _ := v["Labels"].(map[string]any)
	e.dropUnjoined(v)
	text, ours := labels[keptLabel].(string)
	switch {
	case ours:
		var k keptNetwork
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			return false
		}
		options := orEmpty(k.Options)
		id, _ := v["Id"].(string)
		since, again := e.store().Again[id]
		if again {
			options = orEmpty(since.Options)
		}
		if n, err := e.inHNS(k.nameInHNS(id)); err == nil && n.ID != "" && options[optionID] == "" {
			options[optionID] = n.ID
		}
		v["Driver"], v["Options"] = k.Driver, options
		delete(labels, keptLabel)
		if since.Labelless {
			v["Labels"] = map[string]any{}
		}
		setIPAM(v)
	case v["Name"] == natBeneath:
		options := map[string]string{optionName: "nat"}
		if n, err := e.inHNS("nat"); err == nil && n.ID != "" {
			options[optionID] = n.ID
		}
		v["Name"], v["Driver"], v["Options"], v["Labels"] = "nat", "nat", options, map[string]any{}
		setIPAM(v)
	default:
		return v["Name"] == "none"
	}
	return true
}

// dropUnjoined removes running containers that have no HNS endpoint yet: Windows creates the endpoint before the container
// starts.
func (e *Engine) dropUnjoined(v map[string]any) {
	containers, _ := v["Containers"].(map[string]any)
	for id := range containers {
		if _, ok := e.joined.Load(id); !ok && e.opts.HNS != nil {
			delete(containers, id)
		}
	}
}

// setIPAM sets the default driver of libnetwork on Windows, ipams/windowsipam, and hides the addresses that reserveFirst reserves on Linux.
func setIPAM(v map[string]any) {
	ipam, ok := v["IPAM"].(map[string]any)
	if !ok {
		return
	}
	ipam["Driver"] = "windows"
	configs, _ := ipam["Config"].([]any)
	for _, config := range configs {
		if fields, ok := config.(map[string]any); ok {
			delete(fields, "AuxiliaryAddresses")
		}
	}
}

// noIPv6 returns IPAM's error for an IPv6 range; the driver is not called. Source: moby libnetwork/ipams/windowsipam RequestPool of 25.0.6 and
// 28.5.2.
func (e *Engine) noIPv6() string {
	if versions.LessThan(e.facts.docker, "28") {
		return "This request is not supported by null ipam driver"
	}
	return "this request is not supported by the 'windows' ipam driver"
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
