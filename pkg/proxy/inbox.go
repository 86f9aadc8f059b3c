package proxy

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/wake"
)

// Inbox collects changed objects and back ends' warnings until a Loop handles them. Of several changes of one object,
// only the last counts. It is safe for concurrent use, and its methods do not block.
type Inbox struct {
	ready   wake.Signal
	health  *Health
	metrics *Metrics
	clock   clock.PassiveClock

	mu sync.Mutex
	at *batch
}

// batch is the collected input; nil objects were deleted.
type batch struct {
	services map[ServiceName]*v1.Service
	slices   map[types.NamespacedName]*discovery.EndpointSlice
	nodes    map[string]*v1.Node
	ranges   map[string]*networking.ServiceCIDR
	warnings map[warning]string // the message

	serviceEvents, sliceEvents int
}

// warning identifies a back end's warning about a Service.
type warning struct {
	service ServiceName
	reason  string
}

// NewInbox returns an empty Inbox. It records each change in health and metrics.
func NewInbox(health *Health, metrics *Metrics, clock clock.PassiveClock) *Inbox {
	return &Inbox{ready: wake.New(), health: health, metrics: metrics, clock: clock, at: newBatch()}
}

func newBatch() *batch {
	return &batch{services: map[ServiceName]*v1.Service{}, slices: map[types.NamespacedName]*discovery.EndpointSlice{}, nodes: map[string]*v1.Node{},
		ranges: map[string]*networking.ServiceCIDR{}, warnings: map[warning]string{}}
}

func (i *Inbox) put(change func(*batch)) {
	i.mu.Lock()
	change(i.at)
	i.mu.Unlock()
	i.ready.Send()
}

// take returns the collected input and empties the Inbox.
func (i *Inbox) take() *batch {
	select {
	case <-i.ready:
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	taken := i.at
	i.at = newBatch()
	return taken
}

// queued records that a change has arrived.
func (i *Inbox) queued() {
	i.health.Queued()
	i.metrics.queued(i.clock.Now())
}

// SetService sets a Service's current state.
func (i *Inbox) SetService(s *v1.Service) {
	i.putService(ServiceName{Namespace: s.Namespace, Name: s.Name}, s)
}

// DeleteService removes a Service.
func (i *Inbox) DeleteService(name ServiceName) { i.putService(name, nil) }

func (i *Inbox) putService(name ServiceName, s *v1.Service) {
	i.queued()
	i.metrics.servicesTotal.Inc()
	i.metrics.servicesPending.Inc()
	i.put(func(b *batch) { b.services[name] = s; b.serviceEvents++ })
}

// SetSlice sets an EndpointSlice's current state.
func (i *Inbox) SetSlice(slice *discovery.EndpointSlice) {
	i.putSlice(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}, slice)
}

// DeleteSlice removes an EndpointSlice.
func (i *Inbox) DeleteSlice(namespace, name string) {
	i.putSlice(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

func (i *Inbox) putSlice(key types.NamespacedName, slice *discovery.EndpointSlice) {
	i.queued()
	i.metrics.endpointsTotal.Inc()
	i.metrics.endpointsPending.Inc()
	i.put(func(b *batch) { b.slices[key] = slice; b.sliceEvents++ })
}

// SetNode sets the current state of a Node, this one or another.
func (i *Inbox) SetNode(node *v1.Node) {
	i.put(func(b *batch) { b.nodes[node.Name] = node })
}

// DeleteNode removes a Node.
func (i *Inbox) DeleteNode(name string) {
	i.put(func(b *batch) { b.nodes[name] = nil })
}

// putRange sets a ServiceCIDR's current state; nil: it is gone.
func (i *Inbox) putRange(name string, cidr *networking.ServiceCIDR) {
	i.put(func(b *batch) { b.ranges[name] = cidr })
}

// Warn records a warning as an Event on a Service, with a one-word reason and a sentence. Of pending warnings with the
// same Service and reason, only the last counts.
func (i *Inbox) Warn(service ServiceName, reason, message string) {
	i.put(func(b *batch) { b.warnings[warning{service, reason}] = message })
}
