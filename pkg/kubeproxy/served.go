package kubeproxy

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/healthcheck"
)

// served is all that a Table means on this host: its Routes, by the back end; its health check node ports, by the proxy itself; and its ranges, which
// others must know before the back end makes them local.
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
