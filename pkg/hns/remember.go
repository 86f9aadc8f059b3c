package hns

import "slices"

// remembered is a list of objects that HNS hands out one by one, which takes three calls for each. It is read again only when objects have come or
// gone, which HNS tells in one call; what another program changes in place is not seen until then.
type remembered[T any] struct {
	list  []T
	known bool
	print string // of the objects, before list was read
}

// read returns the list, to keep. print says which objects there are; where it cannot, everything is read.
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

// forget is for changes of our own, after which print may be what it was before.
func (r *remembered[T]) forget() { *r = remembered[T]{} }
