package kubeproxy

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/proxy"
)

// Beside serves with two back ends: the same fronts for different clients, or fronts of different protocols. Each of them
// gets the whole Table. First is the faster one.
type Beside struct{ First, Rest proxy.Backend }

// Sync implements proxy.Backend.
func (b Beside) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	return errors.Join(b.First.Sync(ctx, want, changed), b.Rest.Sync(ctx, want, changed))
}
