package kubeproxy

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/proxy"
)

// Beside serves the same fronts with two back ends, for different clients. First is the faster one: it handles clients
// on this host before Rest sees them.
type Beside struct{ First, Rest proxy.Backend }

// Sync implements proxy.Backend.
func (b Beside) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	return errors.Join(b.First.Sync(ctx, want, changed), b.Rest.Sync(ctx, want, changed))
}
