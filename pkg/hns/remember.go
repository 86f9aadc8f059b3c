package hns

import "slices"

// remembered caches a list of objects that HNS returns one by one, with three calls for each. It reads them again only
// after objects were added or removed, which one call shows; it does not notice in-place changes of other programs
// until then.
type remembered[T any] struct {
	list  []T
	known bool
	print string // fingerprint of the objects, taken before list was read
}

// read returns a copy of the list. print returns a fingerprint of the existing objects; if it fails, everything is
// read.
func (r *remembered[T]) read(print func() (string, error), all func() ([]T, error)) ([]T, error) {
	now, unknown := print()
	if r.known && unknown == nil && now == r.print {
		return slices.Clone(r.list), nil
	}
	r.forget()
	list, err := all()
	if err != nil {
		return nil, err
	}
	r.list, r.known, r.print = list, unknown == nil, now
	return slices.Clone(list), nil
}

// forget drops the list after our own changes, which print may not show.
func (r *remembered[T]) forget() { *r = remembered[T]{} }
