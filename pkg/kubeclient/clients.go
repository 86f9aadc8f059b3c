package kubeclient

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Clients are the ways to the API server of one agent. What keeps the node alive in the cluster, and what strangers can cause, have separate connections
// and limits: no number of reads, Events or questions about tokens delays a Lease.
type Clients struct {
	Main      kubernetes.Interface // watches, reads, statuses of pods
	Events    kubernetes.Interface // Main's connection; Events limits how many are sent
	Heartbeat kubernetes.Interface // the Lease and the Node's status
	Reviews   kubernetes.Interface // TokenReviews and SubjectAccessReviews
}

// Limits of reviews, which protect the API server. Package server limits the clients that cause them.
const (
	reviewQPS   = 100
	reviewBurst = 200
)

// NewClients makes them from config, whose limits are those of Main. A heartbeat that is not answered within patience is given up, so that the next
// is tried before the Lease ends.
func NewClients(config *rest.Config, patience time.Duration) (Clients, error) {
	var clients Clients
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return clients, err
	}
	if clients.Main, err = kubernetes.NewForConfigAndClient(config, transport); err != nil {
		return clients, err
	}
	events := rest.CopyConfig(config)
	events.QPS = -1
	if clients.Events, err = kubernetes.NewForConfigAndClient(events, transport); err != nil {
		return clients, err
	}
	heartbeat := separate(config)
	heartbeat.QPS, heartbeat.Timeout = -1, patience
	if clients.Heartbeat, err = kubernetes.NewForConfig(heartbeat); err != nil {
		return clients, err
	}
	reviews := separate(config)
	reviews.QPS, reviews.Burst = reviewQPS, reviewBurst
	clients.Reviews, err = kubernetes.NewForConfig(reviews)
	return clients, err
}

// separate returns config for a client with separate connections.
func separate(config *rest.Config) *rest.Config {
	own := rest.CopyConfig(config)
	if shared, ok := own.Transport.(*renewed); ok {
		own.Transport = shared.fleet.add()
		return own
	}
	if own.Transport == nil && own.Dial == nil {
		// client-go shares the connections of equal configurations. It never takes two for equal that dial by themselves.
		own.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return own
}

// fleet is all transports that show one certificate.
type fleet struct {
	open    func() *http.Transport
	mu      sync.Mutex
	members []*renewed
}

func (f *fleet) add() *renewed {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &renewed{fleet: f}
	r.now.Store(f.open())
	f.members = append(f.members, r)
	return r
}

// renew has all of them begin new connections.
func (f *fleet) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.members {
		r.now.Swap(f.open()).CloseIdleConnections()
	}
}

// renewed sends requests over separate connections for each certificate: the API server looks at a connection's certificate with each
// request. What is under way when there is a new one, watches among it, ends on the connection on which it began.
type renewed struct {
	fleet *fleet
	now   atomic.Pointer[http.Transport]
}

// RoundTrip implements http.RoundTripper.
func (r *renewed) RoundTrip(request *http.Request) (*http.Response, error) {
	return r.now.Load().RoundTrip(request)
}
