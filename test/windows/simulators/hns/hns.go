// Package hns simulates the Host Networking Service of Windows: networks, endpoints, load balancers, routes, namespaces and their policies,
// as HNSCall (vmcompute.dll) and the Hcn functions (computenetwork.dll) see them. It is stateful and strict, logs every call, can crash,
// restart and lose what HNS loses at a reboot, and prints itself as text.
//
//	hcsshim, hnslib --> shim DLLs --> HNS.Call --> state, calls.Log
//
// What Microsoft documents, hcsshim declares or an issue reports is cited at each rule. Where nothing says what HNS does, the simulator
// refuses rather than guesses: it is stricter than Windows, so that a green run says more; it never says that Windows accepts a call.
package hns

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Options describe the host.
type Options struct {
	Build    int      // of Windows: 14393, 17763, 20348 or 26100
	Adapters []string // network adapters that external networks may use; none: "Ethernet"
	Log      *calls.Log
	// OnAdapter receives the host's virtual adapters that networks and endpoints add and remove; it may be nil. It is called with
	// the simulator's lock held.
	OnAdapter func(name string, added bool, addresses []netip.Prefix)
	// Address is what the host has on its network adapters, from which overlay networks tunnel; the zero Addr: HNS does not find it. nil: overlay
	// networks are never finished. It is called with the simulator's lock held.
	Address func() netip.Addr
}

// HNS is one simulated service. It is safe for concurrent use.
type HNS struct {
	build     int
	version   *Version // nil: HNS v1 only
	adapters  []string
	log       *calls.Log
	onAdapter func(string, bool, []netip.Prefix)
	address   func() netip.Addr

	mu              sync.Mutex
	subscribers     map[chan uint32]bool
	running         bool
	networks        []*Network
	endpoints       []*Endpoint
	loadBalancers   []*LoadBalancer
	routes          []*SDNRoute
	namespaces      []*Namespace
	bound           map[string]string // network ID -> adapter
	binding         string            // the adapter of the network that is being created
	handles         map[uint64]handle
	lastHandle      uint64
	lastGUID        int
	lastCompartment uint32
}

// New returns a service that runs and has nothing.
func New(o Options) *HNS {
	if len(o.Adapters) == 0 {
		o.Adapters = []string{"Ethernet"}
	}
	if o.Log == nil {
		o.Log = &calls.Log{}
	}
	h := &HNS{build: o.Build, adapters: o.Adapters, log: o.Log, onAdapter: o.OnAdapter, address: o.Address, running: true, subscribers: map[chan uint32]bool{}, bound: map[string]string{},
		handles: map[uint64]handle{}, lastHandle: 0x1000, lastCompartment: 1}
	if v, ok := versions[o.Build]; ok {
		h.version = &v
	}
	return h
}

// v is the version, 0.0 where there is none.
func (h *HNS) v() Version {
	if h.version == nil {
		return Version{}
	}
	return *h.version
}

// V2 says whether this Windows has computenetwork.dll at all.
func (h *HNS) V2() bool { return h.version != nil }

// Crash ends the service: every call fails until Start. Its state stays.
func (h *HNS) Crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = false
	h.handles = map[uint64]handle{}
	h.notify(notifyDisconnect)
	clear(h.subscribers)
}

// Start begins the service again after a Crash. Networks are kept in HNS.data and come back, unless made with EnableNonPersistent
// (Microsoft's schema, network flag 8). Load balancers and remote endpoints come back where HNS restores them (the rehydration of
// kubernetes/kubernetes#139519: here from HNS 15 on); before, endpoints are gone (projectcalico/calico#5164, Server 2022) and load balancers
// with them.
func (h *HNS) Start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	if !h.Restores() {
		h.forget()
		return
	}
	h.forgetNetworks()
}

// Restores says whether endpoints outlive a crash of this HNS.
func (h *HNS) Restores() bool { return h.v().atLeast(15, 0) }

// Restart is a Crash and a Start.
func (h *HNS) Restart() {
	h.Crash()
	h.Start()
}

// Reboot restarts the host: endpoints, load balancers, routes and namespaces are gone; persistent networks are there again, with their
// adapters and the host's addresses on them.
func (h *HNS) Reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	h.handles = map[uint64]handle{}
	clear(h.subscribers)
	h.forget()
	for _, n := range h.networks {
		if adapter := h.bound[n.ID]; adapter != "" {
			h.binding = adapter
		}
		h.adapterChanged(n, true)
	}
}

func (h *HNS) forget() {
	for _, e := range slices.Clone(h.endpoints) {
		h.dropEndpoint(e)
	}
	h.loadBalancers, h.routes, h.namespaces = nil, nil, nil
	h.forgetNetworks()
}

func (h *HNS) forgetNetworks() {
	for _, n := range slices.Clone(h.networks) {
		if n.Flags&nonPersistent == 0 {
			continue
		}
		if err := h.deleteNetwork(n.ID); err != nil {
			panic(err) // it is in the list
		}
	}
}

// Call is what the shims ask: a function by its name in the DLL, its arguments as text. It returns the HRESULT, the value that the
// function gives (a handle, a document) and the error record.
func (h *HNS) Call(function string, args []string) (result Result, value, record string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	value, err := h.dispatch(function, args)
	f := resultOf(err)
	if function == "HNSCall" && h.version == nil && err != nil && h.running {
		// HNS of Server 2016 returns S_OK and a document that says what failed (docker/for-win#726, moby/moby#33880: "HNS failed with error :
		// The object already exists."), later ones the HRESULT ("hnsCall failed in Win32: ...", kubernetes/kubernetes#74766).
		value = f.record()
	}
	h.log.Add(calls.Call{Service: "hns", Function: function, Args: args, Result: uint32(f.code), Detail: f.detail, Unknown: f.unknown})
	switch {
	case err == nil:
		return 0, value, ""
	case function == "HNSCall" && h.version == nil && h.running:
		return 0, value, ""
	}
	return f.code, "", f.record()
}

func (h *HNS) dispatch(function string, args []string) (string, error) {
	if !h.running {
		return "", &failure{code: ServiceNotActive, detail: "the service is down"}
	}
	if function == "HNSCall" {
		if len(args) != 3 {
			return "", unknown(InvalidParameter, "HNSCall with %d arguments", len(args))
		}
		return h.hnsCall(args[0], args[1], args[2])
	}
	if h.version == nil {
		return "", unknown(NotImplemented, "Windows build %d has no computenetwork.dll", h.build)
	}
	return h.hcn(function, args)
}

// OpenHandles says how many handles callers hold.
func (h *HNS) OpenHandles() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.handles)
}

var guidPattern = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

// identify gives a new object an ID: the one that it asks for if that is free, else the next. The same calls get the same IDs in each run.
func (h *HNS) identify(id *string, kind string) error {
	if *id == "" {
		h.lastGUID++
		number := map[string]int{"network": 1, "endpoint": 2, "loadbalancer": 3, "route": 4, "namespace": 5}[kind]
		*id = fmt.Sprintf("%08x-0000-4000-8000-%012x", h.lastGUID, number)
		return nil
	}
	if !guidPattern.MatchString(*id) {
		return fail(InvalidGUID, "ID is %q", *id)
	}
	_, network := h.network(*id)
	_, endpoint := h.endpoint(*id)
	_, loadBalancer := h.loadBalancer(*id)
	_, route := h.route(*id)
	_, namespace := h.namespace(*id)
	for _, missing := range []error{network, endpoint, loadBalancer, route, namespace} {
		if missing == nil {
			return fail(ObjectExists, "ID %s is there", *id)
		}
	}
	return nil
}

func (h *HNS) network(id string) (*Network, error) {
	if i := slices.IndexFunc(h.networks, func(n *Network) bool { return strings.EqualFold(n.ID, id) }); i >= 0 {
		return h.networks[i], nil
	}
	return nil, fail(NetworkNotFound, "network %s", id)
}

func (h *HNS) endpoint(id string) (*Endpoint, error) {
	if i := slices.IndexFunc(h.endpoints, func(e *Endpoint) bool { return strings.EqualFold(e.ID, id) }); i >= 0 {
		return h.endpoints[i], nil
	}
	return nil, fail(EndpointNotFound, "endpoint %s", id)
}

// Load balancers, routes and namespaces that are not there are "Element not found" (antrea-io/antrea#2301, a namespace).
func (h *HNS) loadBalancer(id string) (*LoadBalancer, error) {
	if i := slices.IndexFunc(h.loadBalancers, func(l *LoadBalancer) bool { return strings.EqualFold(l.ID, id) }); i >= 0 {
		return h.loadBalancers[i], nil
	}
	return nil, fail(ElementNotFound, "load balancer %s", id)
}

func (h *HNS) route(id string) (*SDNRoute, error) {
	if i := slices.IndexFunc(h.routes, func(r *SDNRoute) bool { return strings.EqualFold(r.ID, id) }); i >= 0 {
		return h.routes[i], nil
	}
	return nil, fail(ElementNotFound, "route %s", id)
}

func (h *HNS) namespace(id string) (*Namespace, error) {
	if i := slices.IndexFunc(h.namespaces, func(n *Namespace) bool { return strings.EqualFold(n.ID, id) }); i >= 0 {
		return h.namespaces[i], nil
	}
	return nil, fail(ElementNotFound, "namespace %s", id)
}
