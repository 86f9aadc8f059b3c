// Package hns simulates the Host Networking Service of Windows: networks, endpoints, load balancers, routes, namespaces and their policies,
// through HNSCall (vmcompute.dll) and the Hcn functions (computenetwork.dll). It is stateful and strict, logs every call, can crash and
// restart, loses what HNS loses at a reboot, and prints its state as text.
//
//	hcsshim, hnslib --> shim DLLs --> HNS.Call --> state, calls.Log
//
// Each rule cites Microsoft's documentation, hcsshim or an issue. Where no source describes HNS, the simulator refuses instead of
// guessing. It is stricter than Windows, so that a green run proves more, but never that Windows accepts a call.
package hns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Options describe the simulated host.
type Options struct {
	Build    int      // the Windows build: 14393, 17763, 20348 or 26100
	Adapters []string // network adapters for external networks; default: "Ethernet"
	Log      *calls.Log
	// OnAdapter is called with the host's virtual adapters that networks and endpoints add and remove, with the simulator's lock
	// held. Nil is allowed.
	OnAdapter func(name string, added bool, addresses []netip.Prefix)
	// Address returns the address of the host's network adapters, from which overlay networks tunnel. With the zero Addr HNS does not find it.
	// With nil, overlay networks never become ready. It is called with the simulator's lock held.
	Address func() netip.Addr
	// DropsNewer silently drops settings newer than the build's schema, as HNS does with some of them, and fields that no schema has. Otherwise they
	// are refused. No source says which of the two HNS does.
	DropsNewer bool
	// Contrary makes HNS use its freedom: lists come in a different order each time, and HNS's own additions to a new object are delayed. The
	// value seeds the order. 0 means creation order, and complete objects.
	Contrary uint64
}

// HNS is the simulated service. It is safe for concurrent use.
type HNS struct {
	build     int
	version   *Version // nil means HNS v1 only
	adapters  []string
	log       *calls.Log
	onAdapter func(string, bool, []netip.Prefix)
	address   func() netip.Addr
	schema    Version // of the documents
	drops     bool
	order     *rand.Rand // nil means creation order

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

// New returns a running service without objects.
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
	h.schema, h.drops = schemaOf(o.Build), o.DropsNewer
	if o.Contrary != 0 {
		h.order = rand.New(rand.NewPCG(o.Contrary, 0))
	}
	return h
}

// v returns the version, or 0.0 if there is none.
func (h *HNS) v() Version {
	if h.version == nil {
		return Version{}
	}
	return *h.version
}

// V2 reports whether this Windows has computenetwork.dll.
func (h *HNS) V2() bool { return h.version != nil }

// Crash stops the service: every call fails until Start. Its state is kept.
func (h *HNS) Crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = false
	h.handles = map[uint64]handle{}
	h.notify(notifyDisconnect)
	clear(h.subscribers)
}

// Start starts the service after a Crash. Networks are kept in HNS.data and reappear, unless they have EnableNonPersistent (Microsoft's
// schema, network flag 8). Load balancers and remote endpoints reappear if HNS restores them (the rehydration of
// kubernetes/kubernetes#139519: here from HNS 15 on). Older versions lose endpoints (projectcalico/calico#5164, Server 2022), and load
// balancers with them.
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

// Restores reports whether endpoints survive a crash of this HNS.
func (h *HNS) Restores() bool { return h.v().atLeast(15, 0) }

// Restart crashes and starts the service.
func (h *HNS) Restart() {
	h.Crash()
	h.Start()
}

// Reboot restarts the host: endpoints, load balancers, routes and namespaces are lost. Persistent networks reappear with their
// adapters and the host's addresses.
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
			panic(err) // the network is in the list
		}
	}
}

// Call serves the shims: function is its name in the DLL, and arguments are text. It returns the HRESULT, the function's value (a
// handle or document) and the error record.
func (h *HNS) Call(function string, args []string) (result Result, value, record string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	value, err := h.dispatch(function, args)
	for known, more := h.known(args, err); more; known, more = h.known(known, err) {
		value, err = h.dispatch(function, known)
	}
	f := resultOf(err)
	if function == "HNSCall" && h.version == nil && err != nil && h.running {
		// HNS of Server 2016 returns S_OK and a document with the error (docker/for-win#726, moby/moby#33880: "HNS failed with error : The
		// object already exists."), later versions the HRESULT ("hnsCall failed in Win32: ...", kubernetes/kubernetes#74766).
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

// OpenHandles returns the number of open handles.
func (h *HNS) OpenHandles() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.handles)
}

var guidPattern = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

// disordered shuffles a list if Options.Contrary is set.
func disordered[T any](h *HNS, list []T) []T {
	if h.order != nil {
		h.order.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return list
}

// identify assigns an ID to a new object: the requested one if it is free, otherwise the next one. IDs contain letters, because case matters to
// clients that compare text. The same calls get the same IDs in each run. The Hcn functions always return IDs in lower case, HNSCall as spelled says
// (projectcalico/calico#8465: one load balancer by both).
func (h *HNS) identify(id *string, kind string) error {
	if *id == "" {
		h.lastGUID++
		number := map[string]int{"network": 1, "endpoint": 2, "loadbalancer": 3, "route": 4, "namespace": 5}[kind]
		*id = fmt.Sprintf("%08x-0000-4bea-8cad-%012x", h.lastGUID, number)
		return nil
	}
	if !guidPattern.MatchString(*id) {
		return fail(InvalidGUID, "ID is %q", *id)
	}
	*id = strings.ToLower(*id)
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

// For missing load balancers, routes and namespaces HNS returns "Element not found" (antrea-io/antrea#2301, a
// namespace).
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
