package kubeclient

import (
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/clientset"
)

// Clients are one agent's connections to the API server. Heartbeats, and requests that untrusted clients can cause, have separate
// connections and limits: no number of reads, Events or token reviews delays a Lease.
type Clients struct {
	Main      clientset.Interface // watches, reads, pod statuses
	Events    clientset.Interface // shares Main's connection; Events limits the rate
	Heartbeat clientset.Interface // the Lease and the Node's status
	Reviews   clientset.Interface // TokenReviews and SubjectAccessReviews
	Server    *url.URL            // of the API server
}

// Limits of reviews, to protect the API server. Package server limits the clients that cause them.
const (
	reviewQPS   = 100
	reviewBurst = 200
)

// NewClients creates the clients from config, whose limits apply to Main. A heartbeat without an answer is abandoned after patience, so
// that the next one is tried before the Lease expires.
func NewClients(config *rest.Config, patience time.Duration) (Clients, error) {
	var clients Clients
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return clients, err
	}
	main, err := clientset.NewForConfigAndClient(config, transport)
	if err != nil {
		return clients, err
	}
	clients.Main, clients.Server = main, main.Server()
	events := rest.CopyConfig(config)
	events.QPS = -1
	if clients.Events, err = clientset.NewForConfigAndClient(events, transport); err != nil {
		return clients, err
	}
	heartbeat := separate(config)
	heartbeat.QPS, heartbeat.Timeout = -1, patience
	if clients.Heartbeat, err = clientset.NewForConfig(heartbeat); err != nil {
		return clients, err
	}
	reviews := separate(config)
	reviews.QPS, reviews.Burst = reviewQPS, reviewBurst
	clients.Reviews, err = clientset.NewForConfig(reviews)
	return clients, err
}

// separate returns config for a client with its own connections.
func separate(config *rest.Config) *rest.Config {
	own := rest.CopyConfig(config)
	if shared, ok := own.Transport.(*renewed); ok {
		own.Transport = shared.fleet.add()
		return own
	}
	if own.Transport == nil && own.Dial == nil {
		// client-go shares connections between equal configurations, but never treats two configurations with a Dial function as equal.
		own.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return own
}

// fleet is all transports that use one certificate.
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

// renew makes all transports open new connections.
func (f *fleet) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.members {
		r.now.Swap(f.open()).CloseIdleConnections()
	}
}

// renewed uses new connections for each certificate, because the API server checks a connection's certificate at each request. Requests in
// progress, including watches, finish on their old connection.
type renewed struct {
	fleet *fleet
	now   atomic.Pointer[http.Transport]
}

// RoundTrip implements http.RoundTripper.
func (r *renewed) RoundTrip(request *http.Request) (*http.Response, error) {
	return r.now.Load().RoundTrip(request)
}
