package firewalld

import (
	"context"
	"net/netip"
)

// Keep returns when ctx ends: Windows has no firewalld.
func Keep(ctx context.Context, _ string) error {
	<-ctx.Done()
	return nil
}

// Look returns nothing: Windows has no firewalld.
func Look(context.Context, string, []netip.Prefix) (State, error) { return State{}, nil }
