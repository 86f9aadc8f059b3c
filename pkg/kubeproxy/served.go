package kubeproxy

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/healthcheck"
)

// served applies a whole Table on this host: the back end serves its Routes, the proxy itself its health check node
// ports, and facts gets its ranges before the back end makes them local.
type served struct {
	backend proxy.Backend
	checks  *healthcheck.Ports
	facts   Facts
}

// Sync implements proxy.Backend.
func (s served) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	s.facts.SetServices(want.ServiceRanges)
	return errors.Join(s.backend.Sync(ctx, want, changed), s.checks.Sync(want, changed))
}
