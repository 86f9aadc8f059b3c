package hns

import (
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
)

// Documents of the HCN schema, version 2, with the fields that Microsoft documents ("HCN JSON document schemas") and those that hcsshim
// v0.15.0 sends (package hcn). Fields in neither are refused, or dropped with Options.DropsNewer.

// Route is a route of a subnet or an endpoint.
type Route struct {
	NextHop           string `json:",omitempty"`
	DestinationPrefix string `json:",omitempty"`
	Metric            uint16 `json:",omitempty"`
}

// Policy is a policy of a network, a subnet or an endpoint. Its type determines its settings.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// Subnet is an address range of a network. Flag 1 means that the gateway's address is not reserved.
type Subnet struct {
	IpAddressPrefix string   `json:",omitempty"`
	Policies        []Policy `json:",omitempty"`
	Routes          []Route  `json:",omitempty"`
	Flags           uint32   `json:",omitempty"`
}

// Ipam is how a network assigns addresses: Static or DHCP.
type Ipam struct {
	Type    string   `json:",omitempty"`
	Subnets []Subnet `json:",omitempty"`
}

// MacRange is a range of MAC addresses for endpoints.
type MacRange struct {
	StartMacAddress string `json:",omitempty"`
	EndMacAddress   string `json:",omitempty"`
}

// DNS holds the DNS settings of a network or an endpoint.
type DNS struct {
	Domain     string   `json:",omitempty"`
	Suffix     string   `json:",omitempty"`
	Search     []string `json:",omitempty"`
	ServerList []string `json:",omitempty"`
	Options    []string `json:",omitempty"`
}

// Network is a HostComputeNetwork.
type Network struct {
	ID       string   `json:",omitempty"`
	Owner    string   `json:",omitempty"`
	Name     string   `json:",omitempty"`
	Type     string   `json:",omitempty"`
	Policies []Policy `json:",omitempty"`
	MacPool  struct {
		Ranges []MacRange `json:",omitempty"`
	}
	Dns           DNS
	Ipams         []Ipam          `json:",omitempty"`
	Flags         uint32          `json:",omitempty"`
	Health        json.RawMessage `json:",omitempty"`
	SchemaVersion Version

	unsettled int // reads left until HNS has completed the network
}

// IPConfig is one address of an endpoint.
type IPConfig struct {
	IpAddress    string `json:",omitempty"`
	PrefixLength uint8  `json:",omitempty"`
}

// Endpoint is a HostComputeEndpoint. Flag 1 means that it is on another host.
type Endpoint struct {
	ID                   string     `json:",omitempty"`
	Owner                string     `json:",omitempty"`
	Name                 string     `json:",omitempty"`
	HostComputeNetwork   string     `json:",omitempty"`
	HostComputeNamespace string     `json:",omitempty"`
	Policies             []Policy   `json:",omitempty"`
	IpConfigurations     []IPConfig `json:",omitempty"`
	Dns                  DNS
	Routes               []Route         `json:",omitempty"`
	MacAddress           string          `json:",omitempty"`
	Flags                uint32          `json:",omitempty"`
	Health               json.RawMessage `json:",omitempty"`
	SchemaVersion        Version

	attached []string // containers and "host", attached by HNS v1
}

// remote reports whether the endpoint is on another host.
func (e *Endpoint) remote() bool { return e.Flags&1 != 0 }

// PortMapping is a load balancer's rule for one port.
type PortMapping struct {
	Protocol         uint32 `json:",omitempty"` // 6 TCP, 17 UDP, 132 SCTP
	InternalPort     uint16 `json:",omitempty"`
	ExternalPort     uint16 `json:",omitempty"`
	DistributionType uint32 `json:",omitempty"` // 0 connection, 1 client and protocol, 2 client
	Flags            uint32 `json:",omitempty"` // 1 ILB, 2 local routed VIP, 4 mux, 8 preserve DIP, 16 external VIP
}

// LoadBalancer is a HostComputeLoadBalancer.
type LoadBalancer struct {
	ID                   string        `json:",omitempty"`
	HostComputeEndpoints []string      `json:",omitempty"`
	SourceVIP            string        `json:",omitempty"`
	FrontendVIPs         []string      `json:",omitempty"`
	PortMappings         []PortMapping `json:",omitempty"`
	SchemaVersion        Version
	Flags                uint32 `json:",omitempty"` // 1 DSR, 2 IPv6

	network string
}

// RouteSetting is one route of an SDNRoute.
type RouteSetting struct {
	DestinationPrefix string `json:",omitempty"`
	NextHop           string `json:",omitempty"`
	NeedEncap         bool   `json:",omitempty"`
}

// SDNRoute is a HostComputeRoute.
type SDNRoute struct {
	ID                   string         `json:",omitempty"`
	HostComputeEndpoints []string       `json:",omitempty"`
	Setting              []RouteSetting `json:",omitempty"`
	SchemaVersion        Version
}

// Resource is a member of a namespace: an endpoint or a container.
type Resource struct {
	Type string
	Data struct {
		ID string `json:"Id"`
	}
}

// Namespace is a HostComputeNamespace.
type Namespace struct {
	ID            string     `json:",omitempty"`
	NamespaceId   uint32     `json:",omitempty"`
	Type          string     `json:",omitempty"`
	Resources     []Resource `json:",omitempty"`
	SchemaVersion Version
}

// query is a HostComputeQuery; Filter is a JSON document in a string.
type query struct {
	SchemaVersion Version
	Flags         uint32 `json:",omitempty"`
	Filter        string `json:",omitempty"`
}

// modification is a Modify...SettingRequest.
type modification struct {
	ResourceType string
	RequestType  string
	Settings     json.RawMessage `json:",omitempty"`
}

// decode parses one JSON document and refuses unknown fields.
func decode(text string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if strings.Contains(err.Error(), "unknown field") {
			return unknown(InvalidJSON, "%v", err)
		}
		return fail(InvalidJSON, "%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fail(InvalidJSON, "more than one document")
	}
	return nil
}

var unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)

// known returns a call's arguments without the field for which it was refused, if Options.DropsNewer is set. more is false if there is none.
func (h *HNS) known(args []string, err error) (out []string, more bool) {
	if f := (*failure)(nil); !h.drops || !errors.As(err, &f) || !f.unknown {
		return nil, false
	}
	match := unknownField.FindStringSubmatch(err.Error())
	if match == nil {
		return nil, false
	}
	for _, text := range args {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var document map[string]any
		if decoder.Decode(&document) == nil && leaveOut(document, match[1]) {
			text, more = encode(document), true
		}
		out = append(out, text)
	}
	return out, more
}

// leaveOut removes fields of that name from a document, wherever they are.
func leaveOut(value any, name string) (changed bool) {
	switch v := value.(type) {
	case map[string]any:
		if _, changed = v[name]; changed {
			delete(v, name)
		}
		for _, one := range v {
			changed = leaveOut(one, name) || changed
		}
	case []any:
		for _, one := range v {
			changed = leaveOut(one, name) || changed
		}
	}
	return changed
}

// v2 refuses documents of schemas other than 2.x in the HCN calls.
func (v Version) v2() error {
	if v.Major != 2 {
		return fail(InvalidJSON, "SchemaVersion is %s, want 2.0", v)
	}
	return nil
}

func encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // only our own types and documents decoded before
	}
	return string(text)
}
