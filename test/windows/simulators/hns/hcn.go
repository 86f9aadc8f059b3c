package hns

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// handle is what HcnOpen and HcnCreate return.
type handle struct{ kind, id string }

// kind implements the Hcn functions for one kind of object.
type kind struct {
	object, modification string // document names in the schema

	list   func(h *HNS) []attributes
	get    func(h *HNS, id string) (any, error)
	create func(h *HNS, parent, id, settings string) error
	modify func(h *HNS, id, settings string) error
	remove func(h *HNS, id string) error
}

// attributes are the filters of a query. hcsshim filters by ID, Name and, for endpoints, VirtualNetwork, the name in HNS v1
// (hcnendpoint.go, ListEndpointsOfNetwork). No source shows that other filters work.
type attributes struct{ ID, Name, VirtualNetwork string }

const zeroGUID = "00000000-0000-0000-0000-000000000000"

// created decodes the settings of a new object. asked is the requested ID; zero means that HNS chooses one.
func created(settings, asked string, into any, id *string, version *Version) error {
	if err := decode(settings, into); err != nil {
		return err
	}
	if asked != zeroGUID {
		*id = asked
	}
	return version.v2()
}

// createdBy is created for networks and endpoints. A document without SchemaVersion has version 1, which these functions accept too (hcsshim
// hcn/hcnv1schema_test.go, TestV1Network and TestV1Endpoint).
func createdBy[V1 any, P interface {
	*V1
	v2() (*T, error)
}, T any](settings, asked string, into *T, of func(*T) (*string, *Version)) (*T, error) {
	var head struct{ SchemaVersion *Version }
	if err := json.Unmarshal([]byte(settings), &head); err != nil || head.SchemaVersion != nil {
		id, version := of(into)
		return into, created(settings, asked, into, id, version)
	}
	var in V1
	if err := decode(settings, &in); err != nil {
		return nil, err
	}
	out, err := P(&in).v2()
	if err == nil && asked != zeroGUID {
		id, _ := of(out)
		*id = asked
	}
	return out, err
}

var kinds = map[string]kind{
	"Network": {
		object: "HostComputeNetwork", modification: "ModifyNetworkSettingRequest",
		list: func(h *HNS) (out []attributes) {
			for _, n := range h.networks {
				out = append(out, attributes{ID: n.ID, Name: n.Name})
			}
			return out
		},
		get: func(h *HNS, id string) (any, error) { return h.network(id) },
		create: func(h *HNS, _, id, settings string) error {
			n, err := createdBy[v1Network](settings, id, &Network{}, func(n *Network) (*string, *Version) { return &n.ID, &n.SchemaVersion })
			if err != nil {
				return err
			}
			return h.createNetwork(n)
		},
		modify: func(h *HNS, id, settings string) error {
			n, err := h.network(id)
			if err != nil {
				return err
			}
			return modified(settings, func(m modification) error { return h.modifyNetwork(n, m) })
		},
		remove: (*HNS).deleteNetwork,
	},
	"Endpoint": {
		object: "HostComputeEndpoint", modification: "ModifyEndpointSettingRequest",
		list: func(h *HNS) (out []attributes) {
			for _, e := range h.endpoints {
				out = append(out, attributes{ID: e.ID, Name: e.Name, VirtualNetwork: e.HostComputeNetwork})
			}
			return out
		},
		get: func(h *HNS, id string) (any, error) { return h.endpoint(id) },
		create: func(h *HNS, parent, id, settings string) error {
			n, err := h.network(parent)
			if err != nil {
				return err
			}
			e, err := createdBy[v1Endpoint](settings, id, &Endpoint{}, func(e *Endpoint) (*string, *Version) { return &e.ID, &e.SchemaVersion })
			if err != nil {
				return err
			}
			return h.createEndpoint(n, e)
		},
		modify: func(h *HNS, id, settings string) error {
			e, err := h.endpoint(id)
			if err != nil {
				return err
			}
			return modified(settings, func(m modification) error { return h.modifyEndpoint(e, m) })
		},
		remove: func(h *HNS, id string) error {
			e, err := h.endpoint(id)
			if err == nil {
				h.dropEndpoint(e)
			}
			return err
		},
	},
	"LoadBalancer": {
		object: "HostComputeLoadBalancer", modification: "HostComputeLoadBalancer",
		list: func(h *HNS) (out []attributes) {
			for _, l := range h.loadBalancers {
				out = append(out, attributes{ID: l.ID})
			}
			return out
		},
		get: func(h *HNS, id string) (any, error) { return h.loadBalancer(id) },
		create: func(h *HNS, _, id, settings string) error {
			l := &LoadBalancer{}
			if err := created(settings, id, l, &l.ID, &l.SchemaVersion); err != nil {
				return err
			}
			return h.createLoadBalancer(l)
		},
		modify: func(h *HNS, id, settings string) error {
			l, err := h.loadBalancer(id)
			if err != nil {
				return err
			}
			return h.modifyLoadBalancer(l, settings)
		},
		remove: (*HNS).deleteLoadBalancer,
	},
	"SdnRoute": {
		object: "HostComputeRoute",
		list: func(h *HNS) (out []attributes) {
			for _, r := range h.routes {
				out = append(out, attributes{ID: r.ID})
			}
			return out
		},
		get: func(h *HNS, id string) (any, error) { return h.route(id) },
		create: func(h *HNS, _, id, settings string) error {
			r := &SDNRoute{}
			if err := created(settings, id, r, &r.ID, &r.SchemaVersion); err != nil {
				return err
			}
			return h.createRoute(r)
		},
		modify: func(*HNS, string, string) error { return unknown(NotImplemented, "modifying a route is not simulated") },
		remove: (*HNS).deleteRoute,
	},
	"Namespace": {
		object: "HostComputeNamespace", modification: "ModifyNamespaceSettingRequest",
		list: func(h *HNS) (out []attributes) {
			for _, n := range h.namespaces {
				out = append(out, attributes{ID: n.ID})
			}
			return out
		},
		get: func(h *HNS, id string) (any, error) { return h.namespace(id) },
		create: func(h *HNS, _, id, settings string) error {
			n := &Namespace{}
			if err := created(settings, id, n, &n.ID, &n.SchemaVersion); err != nil {
				return err
			}
			return h.createNamespace(n)
		},
		modify: func(h *HNS, id, settings string) error {
			n, err := h.namespace(id)
			if err != nil {
				return err
			}
			return modified(settings, func(m modification) error { return h.modifyNamespace(n, m) })
		},
		remove: (*HNS).deleteNamespace,
	},
}

func modified(settings string, apply func(modification) error) error {
	var m modification
	if err := decode(settings, &m); err != nil {
		return err
	}
	return apply(m)
}

var hcnFunction = regexp.MustCompile(`^Hcn(Enumerate|Create|Open|Modify|Query|Delete|Close)(Network|Endpoint|LoadBalancer|SdnRoute|Namespace)(s|Properties)?$`)

// hcn executes a function of computenetwork.dll. Handles are passed as decimal numbers, GUIDs as text.
func (h *HNS) hcn(function string, args []string) (string, error) {
	match := hcnFunction.FindStringSubmatch(function)
	if match == nil {
		return "", unknown(NotImplemented, "%s is not simulated", function)
	}
	verb, name := match[1], match[2]
	want := map[string]int{"Enumerate": 1, "Create": 2, "Open": 1, "Modify": 2, "Query": 2, "Delete": 1, "Close": 1}[verb]
	if verb == "Create" && name == "Endpoint" {
		want = 3
	}
	if len(args) != want {
		return "", unknown(InvalidParameter, "%d arguments, want %d", len(args), want)
	}
	k := kinds[name]
	switch verb {
	case "Enumerate":
		return h.enumerate(k, args[0])
	case "Create":
		return h.create(name, k, args)
	case "Open":
		if _, err := k.get(h, args[0]); err != nil {
			return "", err
		}
		return h.opened(name, args[0]), nil
	case "Delete":
		return "", k.remove(h, args[0])
	}
	number, open, err := h.held(name, args[0])
	if err != nil {
		return "", err
	}
	switch verb {
	case "Modify":
		settings, err := h.bySchema(k.modification, args[1])
		if err != nil {
			return "", err
		}
		return "", k.modify(h, open.id, settings)
	case "Query":
		return h.properties(k, open.id, args[1])
	}
	delete(h.handles, number)
	return "", nil
}

func (h *HNS) create(name string, k kind, args []string) (string, error) {
	parent, id, settings := "", args[0], args[1]
	if name == "Endpoint" {
		_, network, err := h.held("Network", args[0])
		if err != nil {
			return "", err
		}
		parent, id, settings = network.id, args[1], args[2]
	}
	settings, err := h.bySchema(k.object, settings)
	if err != nil {
		return "", err
	}
	if err := k.create(h, parent, id, settings); err != nil {
		return "", err
	}
	all := k.list(h)
	return h.opened(name, all[len(all)-1].ID), nil
}

func (h *HNS) opened(name, id string) string {
	h.lastHandle++
	h.handles[h.lastHandle] = handle{name, id}
	return strconv.FormatUint(h.lastHandle, 10)
}

func (h *HNS) held(name, text string) (uint64, handle, error) {
	number, err := strconv.ParseUint(text, 10, 64)
	open, ok := h.handles[number]
	if err != nil || !ok || open.kind != name {
		return 0, handle{}, fail(InvalidHandle, "%s is no handle of a %s", text, name)
	}
	return number, open, nil
}

// enumerate returns the IDs of the objects that match the query.
func (h *HNS) enumerate(k kind, text string) (string, error) {
	var q query
	if text == "" {
		q.SchemaVersion.Major = 2
	} else if err := decode(text, &q); err != nil {
		return "", err
	}
	if err := q.SchemaVersion.v2(); err != nil {
		return "", err
	}
	filter := map[string]string{}
	if q.Filter != "" {
		if err := decode(q.Filter, &filter); err != nil {
			return "", err
		}
	}
	ids := []string{}
	for _, a := range k.list(h) {
		ok, err := a.match(filter)
		if err != nil {
			return "", err
		}
		if ok {
			ids = append(ids, a.ID)
		}
	}
	return encode(disordered(h, ids)), nil
}

func (a attributes) match(filter map[string]string) (bool, error) {
	for key, want := range filter {
		switch key {
		case "ID":
			if !strings.EqualFold(a.ID, want) {
				return false, nil
			}
		case "Name":
			if a.Name != want {
				return false, nil
			}
		case "VirtualNetwork":
			if !strings.EqualFold(a.VirtualNetwork, want) {
				return false, nil
			}
		default:
			return false, unknown(InvalidParameter, "a filter by %q is not simulated", key)
		}
	}
	return true, nil
}

func (h *HNS) properties(k kind, id, text string) (string, error) {
	if text != "" {
		var q query
		if err := decode(text, &q); err != nil {
			return "", err
		}
	}
	object, err := k.get(h, id)
	if err != nil {
		return "", err
	}
	switch o := object.(type) {
	case *Network:
		h.settle(o)
	case *LoadBalancer:
		object = h.answered(*o)
	}
	return encode(object), nil
}
