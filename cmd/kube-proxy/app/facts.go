package app

import (
	"net/netip"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/learn"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/routes"
)

// sharedFacts passes facts about the cluster to the routes and, in a file, to this host's kubelet, which may not read
// them itself.
type sharedFacts struct {
	*routes.Facts
	file report.FactsFile // "": no file to write

	mu      sync.Mutex
	known   report.Facts // Balancers, Serving and Listen are set from the start
	said    bool         // known.Services was read and logged
	written bool         // the file is up to date
}

// newSharedFacts returns the facts of a proxy; known is what its configuration says.
func newSharedFacts(windows bool, known report.Facts) *sharedFacts {
	file, err := report.FactsOfHost(windows)
	if err != nil {
		klog.ErrorS(err, "Cannot report cluster settings to the kubelet; it uses Services only")
	}
	return &sharedFacts{Facts: routes.NewFacts(), file: file, known: known}
}

// SetServices implements kubeproxy.Facts.
func (s *sharedFacts) SetServices(ranges []netip.Prefix) {
	s.Facts.SetServices(ranges)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.said || !slices.Equal(ranges, s.known.Services) {
		s.said = true
		if len(ranges) == 0 {
			klog.InfoS("Cannot detect a setting of the cluster", "what", "ranges of Services", "reason", "cannot read ServiceCIDRs; the kubelet uses the cluster IPs of Services")
		} else {
			klog.InfoS("Detected a setting of the cluster", "what", "ranges of Services", "value", ranges, "from", "its ServiceCIDRs")
		}
	}
	s.set(ranges, s.known.Pods, s.known.Routes)
}

// podSetter returns the function that sets the ranges of the Nodes that have routes in mode.
func (s *sharedFacts) podSetter(mode routes.Mode) func([]netip.Prefix) {
	all := mode == routes.HostGateway || mode == routes.Overlay // in other modes other programs have the routes
	return func(ranges []netip.Prefix) {
		merged := learn.Merge(ranges)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.set(s.known.Services, merged, all)
	}
}

// set writes changed facts. The caller holds the lock. After a failure it writes again with the next Sync. Until the
// ranges of Services are read, the previous proxy's file stays: if they vanished, the kubelet would guess narrower ones
// and change the pods' network.
func (s *sharedFacts) set(services, pods []netip.Prefix, routes bool) {
	if !s.said {
		s.known.Pods, s.known.Routes = pods, routes
		return
	}
	if s.written && slices.Equal(services, s.known.Services) && slices.Equal(pods, s.known.Pods) && routes == s.known.Routes || s.file == "" {
		return
	}
	s.known.Services, s.known.Pods, s.known.Routes = slices.Clone(services), pods, routes
	err := s.file.Write(s.known)
	if s.written = err == nil; err != nil {
		klog.ErrorS(err, "The kubelet uses Services only")
	}
}

// forget removes the facts that a proxy shared.
func forget(windows bool) error {
	file, err := report.FactsOfHost(windows)
	if err != nil {
		return err
	}
	return file.Write(report.Facts{})
}
