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

// Inbox gathers what a Loop is to act on until it does: changed objects, and warnings of back ends. Of several changes of one object the last
// counts. Any goroutine may call its methods; they do not block.
type Inbox struct {
	ready   wake.Signal
	health  *Health
	metrics *Metrics
	clock   clock.PassiveClock

	mu sync.Mutex
	at *batch
}

// batch is what came in; nil objects are gone.
type batch struct {
	services map[ServiceName]*v1.Service
	slices   map[types.NamespacedName]*discovery.EndpointSlice
	nodes    map[string]*v1.Node
	ranges   map[string]*networking.ServiceCIDR
	warnings map[warning]string // the message

	serviceEvents, sliceEvents int
}

// warning is what a back end said of a Service.
type warning struct {
	service ServiceName
	reason  string
}

// NewInbox returns an empty Inbox. health and metrics note each change.
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

// take returns what came in and empties the Inbox.
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

// queued notes that a change has come in.
func (i *Inbox) queued() {
	i.health.Queued()
	i.metrics.queued(i.clock.Now())
}

// SetService says what a Service is now.
func (i *Inbox) SetService(s *v1.Service) {
	i.putService(ServiceName{Namespace: s.Namespace, Name: s.Name}, s)
}

// DeleteService says that a Service is gone.
func (i *Inbox) DeleteService(name ServiceName) { i.putService(name, nil) }

func (i *Inbox) putService(name ServiceName, s *v1.Service) {
	i.queued()
	i.metrics.servicesTotal.Inc()
	i.metrics.servicesPending.Inc()
	i.put(func(b *batch) { b.services[name] = s; b.serviceEvents++ })
}

// SetSlice says what an EndpointSlice is now.
func (i *Inbox) SetSlice(slice *discovery.EndpointSlice) {
	i.putSlice(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}, slice)
}

// DeleteSlice says that an EndpointSlice is gone.
func (i *Inbox) DeleteSlice(namespace, name string) {
	i.putSlice(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

func (i *Inbox) putSlice(key types.NamespacedName, slice *discovery.EndpointSlice) {
	i.queued()
	i.metrics.endpointsTotal.Inc()
	i.metrics.endpointsPending.Inc()
	i.put(func(b *batch) { b.slices[key] = slice; b.sliceEvents++ })
}

// SetNode says what a Node, this or another, is now.
func (i *Inbox) SetNode(node *v1.Node) {
	i.put(func(b *batch) { b.nodes[node.Name] = node })
}

// DeleteNode says that a Node is gone.
func (i *Inbox) DeleteNode(name string) {
	i.put(func(b *batch) { b.nodes[name] = nil })
}

// putRange says what a ServiceCIDR is now; nil: it is gone.
func (i *Inbox) putRange(name string, cidr *networking.ServiceCIDR) {
	i.put(func(b *batch) { b.ranges[name] = cidr })
}

// Warn has a warning recorded as an Event on a Service, with a reason in one word and a sentence. Of those that wait for one Service and reason
// the last counts.
func (i *Inbox) Warn(service ServiceName, reason, message string) {
	i.put(func(b *batch) { b.warnings[warning{service, reason}] = message })
}
