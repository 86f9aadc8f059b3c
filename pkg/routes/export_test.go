package routes

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	DefaultCompare = defaultCompare
	FirstRetry     = firstRetry
)

// Nodes of tests, and what Apply's errors say.
var (
	NewNode   = node
	Younger   = younger
	Seeds     = seeds
	Announce  = announce
	Cluster   = cluster
	Conflicts = conflicts
)

// Pass compares once.
func (m *Manager) Pass(ctx context.Context, nodes []*v1.Node) ([]Problem, time.Duration, bool) {
	return m.pass(ctx, nodes)
}

// Report passes problems on, after a comparison or not.
func (m *Manager) Report(problems []Problem, compared bool) { m.report(problems, compared) }
