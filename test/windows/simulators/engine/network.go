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
)

// drivers of Windows. Source: moby libnetwork/drivers_windows.go and drivers/windows RegisterBuiltinLocalDrivers.
var drivers = []string{"ics", "internal", "l2bridge", "l2tunnel", "nat", "null", "overlay", "private", "transparent"}

// keptNetwork is what a network is to the client.
type keptNetwork struct {
	Driver  string
	Options map[string]string
	IPAM    *network.IPAM
}

// createNetwork makes a bridge beneath for every kind of network. It is no claim about the paths of packets: that is HNS' affair.
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
		refuse(w, http.StatusBadRequest, "network name cannot be empty")
		return
	case slices.Contains([]string{"nat", "none", "default"}, body.Name): // moby daemon/network.go createNetwork
		refuse(w, http.StatusForbidden, fmt.Sprintf("operation is not permitted on predefined %s network ", body.Name))
		return
	case body.Driver == "overlay": // as long as the host is in no swarm: same place
		refuse(w, http.StatusForbidden, `This node is not a swarm manager. Use "docker swarm init" or "docker swarm join" to connect this node to swarm and try again.`)
		return
	case !slices.Contains(drivers, body.Driver):
		refuse(w, http.StatusNotFound, fmt.Sprintf("could not find plugin %s in v1 plugin registry: plugin not found", body.Driver))
		return
	}
	if body.IPAM != nil {
		for _, config := range body.IPAM.Config {
			if prefix, err := netip.ParsePrefix(config.Subnet); err == nil && prefix.Addr().Is6() {
				refuse(w, http.StatusForbidden, "windowsshim driver doesn't support v6 subnets") // libnetwork/drivers/windows/windows.go CreateNetwork
				return
			}
		}
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

// reserveFirst keeps the first address of each range from containers, as HNS does.
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

// rewriteNetwork makes a network one of Windows; false: Windows has no such network.
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
		if n, err := e.inHNS(k.nameInHNS(id)); err == nil && n.ID != "" {
			options[optionID] = n.ID
		}
		v["Driver"], v["Options"] = k.Driver, options
		delete(labels, keptLabel)
		setIPAMDriver(v)
	case v["Name"] == natBeneath:
		v["Name"], v["Driver"], v["Options"] = "nat", "nat", map[string]string{"com.docker.network.windowsshim.networkname": "nat"}
		setIPAMDriver(v)
	default:
		return v["Name"] == "none"
	}
	return true
}

// dropUnjoined leaves out containers that run beneath and have no endpoint in HNS yet: on Windows that is made before they start.
func (e *Engine) dropUnjoined(v map[string]any) {
	containers, _ := v["Containers"].(map[string]any)
	for id := range containers {
		if _, ok := e.joined.Load(id); !ok && e.opts.HNS != nil {
			delete(containers, id)
		}
	}
}

// setIPAMDriver: libnetwork's ipams/windowsipam is the default there.
func setIPAMDriver(v map[string]any) {
	if ipam, ok := v["IPAM"].(map[string]any); ok {
		ipam["Driver"] = "windows"
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
