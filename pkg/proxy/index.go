package proxy

import (
	"iter"
	"slices"
)

// index finds claims by front or by address. Nearly every key has only one claim, which needs no list.
type index[K comparable] struct {
	first map[K]*claim   // the claim with the best right
	all   map[K][]*claim // all claims, best right first, for keys with at least two
}

func newIndex[K comparable]() index[K] {
	return index[K]{first: map[K]*claim{}, all: map[K][]*claim{}}
}

// add adds a claim that is not in the index.
func (x *index[K]) add(key K, c *claim) {
	first := x.first[key]
	if first == nil {
		x.first[key] = c
		return
	}
	list := x.all[key]
	if list == nil {
		list = []*claim{first}
	}
	at, _ := slices.BinarySearchFunc(list, c, byRight)
	x.set(key, slices.Insert(list, at, c))
}

// remove removes the claim of an entry and reports whether it had one.
func (x *index[K]) remove(key K, by *entry) bool {
	if list := x.all[key]; list != nil {
		at := slices.IndexFunc(list, func(c *claim) bool { return c.by == by })
		if at >= 0 {
			x.set(key, slices.Delete(list, at, at+1))
		}
		return at >= 0
	}
	first := x.first[key]
	if first == nil || first.by != by {
		return false
	}
	delete(x.first, key)
	return true
}

func (x *index[K]) set(key K, list []*claim) {
	x.first[key] = list[0]
	if len(list) > 1 {
		x.all[key] = list
	} else {
		delete(x.all, key)
	}
}

// of yields the claims for a key, best right first. The index must not change meanwhile.
func (x *index[K]) of(key K) iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		list := x.all[key]
		if list == nil {
			if first := x.first[key]; first != nil {
				yield(first)
			}
			return
		}
		for _, c := range list {
			if !yield(c) {
				return
			}
		}
	}
}

// has reports whether an entry has a claim for a key.
func (x *index[K]) has(key K, by *entry) bool {
	for c := range x.of(key) {
		if c.by == by {
			return true
		}
	}
	return false
}
