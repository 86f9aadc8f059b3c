package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/versions"
)

// HNSCall is HNSCall of vmcompute.dll: it sends a method, a path and a document, and returns HNS's answer. An error is
// an HRESULT.
type HNSCall func(method, path, request string) (answer string, err error)

// The HNS v1 documents, with the fields that Docker sets. Source: moby libnetwork/drivers/windows/windows.go, hcsshim internal/hns.
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

// Driver options of Windows networks. Source: moby libnetwork/drivers/windows/labels.go.
const (
	windowsshim     = "com.docker.network.windowsshim."
	optionName      = windowsshim + "networkname"
	optionInterface = windowsshim + "interface"
	optionID        = windowsshim + "hnsid"
	optionNAT       = windowsshim + "enable_outboundnat"
	optionNoNAT     = windowsshim + "outboundnat_exceptions"
	optionOwned     = windowsshim + "hnsowned"
)

// hns calls HNS and decodes its output into out, if out is not nil. Errors are worded like hcsshim's internal/hns.
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
		return fmt.Errorf("%shnsCall failed in Win32: %w", e.rawResponse(), err)
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

// rawResponse returns the prefix of errors in hcsshim 0.11, which engines such as 25.0.6 use (internal/hns/hnsfuncs.go).
func (e *Engine) rawResponse() string {
	if versions.LessThan(e.facts.docker, "25") {
		return ""
	}
	return "failed during hnsCallRawResponse: "
}

// nameInHNS returns the network's name in HNS: its ID, unless an option sets another (libnetwork's CreateNetwork;
// MicrosoftDocs/Virtualization-Documentation#546).
func (k keptNetwork) nameInHNS(id string) string {
	if name := k.Options[optionName]; name != "" {
		return name
	}
	return id
}

// createInHNS creates the HNS network for a Docker network.
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

// adopt takes over an existing HNS network and removes its endpoints: libnetwork's CreateNetwork treats them as stale.
func (e *Engine) adopt(id string) error {
	var all []hnsEndpoint
	if err := e.hns("GET", "/networks/"+id, nil, nil); err != nil {
		return err
	}
	if err := e.hns("GET", "/endpoints/", nil, &all); err != nil {
		return err
	}
	for _, one := range all {
		if one.VirtualNetwork == id { // case-sensitive, as in libnetwork
			if err := e.hns("DELETE", "/endpoints/"+one.ID, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// endpointPolicies returns the policies of each new endpoint: OutBoundNAT if the network's options ask for it (libnetwork's CreateEndpoint;
// Microsoft, "Windows container network drivers").
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

// inHNS finds an HNS network by name.
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

// removeFromHNS removes a network. A missing network is not an error.
func (e *Engine) removeFromHNS(name string) error {
	n, err := e.inHNS(name)
	if err != nil || n.ID == "" {
		return nil
	}
	return e.hns("DELETE", "/networks/"+n.ID, nil, nil)
}
