package report

import (
	"context"
	"fmt"
	"net/netip"
)

// Facts are what the proxy has learned of the cluster, and what it has on this host; no prefixes: unknown.
type Facts struct {
	Services []netip.Prefix `json:"services,omitempty"` // ranges of the cluster's ServiceCIDRs
	Pods     []netip.Prefix `json:"pods,omitempty"`     // ranges of the Nodes that it maintains routes to
	// Balancers is the network of HNS whose load balancers are the proxy's; nothing in HNS says who made one. "": it has none.
	Balancers string  `json:"balancers,omitempty"`
	Routes    bool    `json:"routes,omitempty"` // it maintains routes to all Nodes with ranges, so that Pods are all there are
	Serving   Serving `json:"serving,omitzero"`
	// Listen are the TCP addresses where the proxy itself serves healthz and metrics. Pods' hostPorts must leave them free. None: unknown.
	Listen []netip.AddrPort `json:"listen,omitempty"`
}

// Serving is how the proxy serves Services on its host, for doctor. Each value is followed by its source.
type Serving struct {
	BackEnd       string `json:"backEnd,omitempty"` // relay, portproxy, hnslb or connect
	BackEndFrom   string `json:"backEndFrom,omitempty"`
	DSR           string `json:"dsr,omitempty"` // on or off; "": the back end has no such choice
	DSRFrom       string `json:"dsrFrom,omitempty"`
	Interface     string `json:"interface,omitempty"` // with the addresses of Services
	InterfaceFrom string `json:"interfaceFrom,omitempty"`
}

// FactsFile contains Facts. The zero FactsFile is empty, never changes and must not be written.
type FactsFile string

// FactsOfHost is the file for the host whose network namespace this process uses.
func FactsOfHost(windows bool) (FactsFile, error) {
	path, err := ofHost(windows, "facts")
	return FactsFile(path), err
}

// Write replaces all Facts atomically; zero Facts remove the file. Idempotent.
func (f FactsFile) Write(facts Facts) error {
	if err := write(string(f), facts, len(facts.Services)+len(facts.Pods)+len(facts.Balancers)+len(facts.Listen) == 0 && !facts.Routes && facts.Serving == Serving{}); err != nil {
		return fmt.Errorf("cannot report cluster settings to the kubelet: %w", err)
	}
	return nil
}

// Read returns the Facts; zero Facts if there is no file.
func (f FactsFile) Read() (Facts, error) {
	var facts Facts
	if err := read(string(f), &facts); err != nil {
		return Facts{}, err
	}
	return facts, nil
}

// Watch calls changed after each change until ctx ends, and then returns nil. changed must not block.
func (f FactsFile) Watch(ctx context.Context, changed func()) error {
	return watch(ctx, string(f), changed)
}
