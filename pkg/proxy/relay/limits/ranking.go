package limits

// Ranked is an owner's entry in a Ranking. It is embedded in the owner, or a field of it.
type Ranked[T any] struct {
	Owner          *T
	count          int
	previous, next *Ranked[T] // with the same count
}

// Count returns how much the owner has.
func (r *Ranked[T]) Count() int { return r.count }

// Ranking orders owners by how much they have. Every operation takes constant time if counts change in small steps. The
// zero Ranking is empty. It is not safe for concurrent use.
type Ranking[T any] struct {
	ranks []rank[T] // by count
	top   int       // the largest count
}

type rank[T any] struct{ first, last *Ranked[T] }

func (r *Ranking[T]) unlink(o *Ranked[T]) {
	at := &r.ranks[o.count]
	if o.previous != nil {
		o.previous.next = o.next
	} else {
		at.first = o.next
	}
	if o.next != nil {
		o.next.previous = o.previous
	} else {
		at.last = o.previous
	}
	o.previous, o.next = nil, nil
}

func (r *Ranking[T]) link(o *Ranked[T]) {
	at := &r.ranks[o.count]
	if o.previous = at.last; at.last != nil {
		at.last.next = o
	} else {
		at.first = o
	}
	at.last = o
}

// Add adds by, which may be negative, to an owner's count.
func (r *Ranking[T]) Add(o *Ranked[T], by int) {
	if o.count > 0 {
		r.unlink(o)
	}
	o.count += by
	for o.count >= len(r.ranks) {
		r.ranks = append(r.ranks, rank[T]{})
	}
	if o.count > 0 {
		r.link(o)
	}
	r.top = max(r.top, o.count)
	for r.top > 0 && r.ranks[r.top].first == nil {
		r.top-- // at most down to the owner's count
	}
	if r.top == 0 && len(r.ranks) > smallPool {
		r.ranks = nil
	}
}

// Top returns the largest count.
func (r *Ranking[T]) Top() int { return r.top }

// Greediest returns the owner that has had the largest count for longest; nil: none has anything.
func (r *Ranking[T]) Greediest() *T {
	if r.top == 0 {
		return nil
	}
	return r.ranks[r.top].first.Owner
}
