package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/network"
)

// HNSCall is HNSCall of vmcompute.dll: a method, a path and a document, and HNS' answer. An error is an HRESULT.
type HNSCall func(method, path, request string) (answer string, err error)

// The documents of HNS v1, as far as Docker fills them in. Source: moby libnetwork/drivers/windows/windows.go, hcsshim internal/hns.
type (
	hnsNetwork struct {
		ID                 string      `json:",omitempty"`
		Name               string      `json:",omitempty"`
		Type               string      `json:",omitempty"`
		NetworkAdapterName string      `json:",omitempty"`
		Subnets            []hnsSubnet `json:",omitempty"`
	}
	hnsSubnet struct {
		AddressPrefix  string `json:",omitempty"`
		GatewayAddress string `json:",omitempty"`
	}
	hnsEndpoint struct {
		ID               string   `json:",omitempty"`
		VirtualNetwork   string   `json:",omitempty"`
		IPAddress        string   `json:",omitempty"`
		MacAddress       string   `json:",omitempty"`
		SharedContainers []string `json:",omitempty"`

		Policies []any `json:",omitempty"`
	}
)

// Driver options of Windows' networks. Source: moby libnetwork/drivers/windows/labels.go.
const (
	windowsshim     = "com.docker.network.windowsshim."
	optionName      = windowsshim + "networkname"
	optionInterface = windowsshim + "interface"
	optionID        = windowsshim + "hnsid"
	optionNAT       = windowsshim + "enable_outboundnat"
	optionNoNAT     = windowsshim + "outboundnat_exceptions"
)

// hns does a call and reads its output into out, unless that is nil. The errors' words are those of hcsshim's internal/hns.
func (e *Engine) hns(method, path string, in, out any) error {
	var request []byte
	var err error
	if in != nil {
		if request, err = json.Marshal(in); err != nil {
			return err
		}
	}
	text, err := e.opts.HNS(method, path, string(request))
	if err != nil {
		return fmt.Errorf("hnsCall failed in Win32: %w", err)
	}
	var answer struct {
		Success bool
		Error   string
		Output  json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return fmt.Errorf("HNS answers %q: %w", text, err)
	}
	if !answer.Success {
		return errors.New("HNS failed with error : " + answer.Error)
	}
	if out == nil || len(answer.Output) == 0 {
		return nil
	}
	return json.Unmarshal(answer.Output, out)
}

// nameInHNS is the name that HNS knows a network by: its ID, unless an option says otherwise (libnetwork's CreateNetwork;
// MicrosoftDocs/Virtualization-Documentation#546).
func (k keptNetwork) nameInHNS(id string) string {
	if name := k.Options[optionName]; name != "" {
		return name
	}
	return id
}

// createInHNS makes the network of HNS that stands behind one of Docker's.
func (e *Engine) createInHNS(id string, k keptNetwork) error {
	if e.opts.HNS == nil || k.Driver == "null" {
		return nil
	}
	if k.Options[optionID] != "" {
		return e.adopt(k.Options[optionID])
	}
	n := hnsNetwork{Name: k.nameInHNS(id), Type: k.Driver, NetworkAdapterName: k.Options[optionInterface]}
	for option := range k.Options {
		if strings.HasPrefix(option, windowsshim) && !slices.Contains([]string{optionName, optionInterface, optionNAT, optionNoNAT}, option) {
			e.fault("network option %s is not simulated", option)
		}
	}
	if k.IPAM != nil {
		n.Subnets = subnets(k.IPAM.Config)
	}
	return e.hns("POST", "/networks/", n, nil)
}

// adopt takes a network that is in HNS, and removes what endpoints it has: libnetwork's CreateNetwork treats them as stale.
func (e *Engine) adopt(id string) error {
	var all []hnsEndpoint
	if err := e.hns("GET", "/networks/"+id, nil, nil); err != nil {
		return err
	}
	if err := e.hns("GET", "/endpoints/", nil, &all); err != nil {
		return err
	}
	for _, one := range all {
		if strings.EqualFold(one.VirtualNetwork, id) {
			if err := e.hns("DELETE", "/endpoints/"+one.ID, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// endpointPolicies are those of each endpoint: OutBoundNAT where the network's options ask for it (libnetwork's CreateEndpoint; Microsoft, "Windows
// container network drivers").
func (k keptNetwork) endpointPolicies() []any {
	if k.Options[optionNAT] != "true" {
		return nil
	}
	policy := map[string]any{"Type": "OutBoundNAT"}
	if k.Options[optionNoNAT] != "" {
		policy["ExceptionList"] = strings.Split(k.Options[optionNoNAT], ",")
	}
	return []any{policy}
}

func subnets(configs []network.IPAMConfig) (out []hnsSubnet) {
	for _, c := range configs {
		out = append(out, hnsSubnet{c.Subnet, c.Gateway})
	}
	return out
}

// inHNS finds a network of HNS by name.
func (e *Engine) inHNS(name string) (hnsNetwork, error) {
	if e.opts.HNS == nil {
		return hnsNetwork{}, nil
	}
	var all []hnsNetwork
	if err := e.hns("GET", "/networks/", nil, &all); err != nil {
		return hnsNetwork{}, err
	}
	i := slices.IndexFunc(all, func(n hnsNetwork) bool { return strings.EqualFold(n.Name, name) })
	if i < 0 {
		return hnsNetwork{}, fmt.Errorf("network %s not found in HNS", name)
	}
	return all[i], nil
}

// removeFromHNS removes a network; one that HNS has lost is no error.
func (e *Engine) removeFromHNS(name string) error {
	n, err := e.inHNS(name)
	if err != nil || n.ID == "" {
		return nil
	}
	return e.hns("DELETE", "/networks/"+n.ID, nil, nil)
}
