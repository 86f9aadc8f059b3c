package csi

import "context"

type migratedKey struct{}

// Migrated marks the calls with this context as those for a volume that an in-tree kind was translated from. Metrics count them apart.
func Migrated(ctx context.Context) context.Context {
	return context.WithValue(ctx, migratedKey{}, true)
}

// IsMigrated says whether Migrated made ctx.
func IsMigrated(ctx context.Context) bool {
	marked, _ := ctx.Value(migratedKey{}).(bool)
	return marked
}
