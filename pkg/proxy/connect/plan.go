package connect

import (
	"fmt"
	"slices"
)

// Capacities of the maps. The relay serves ClusterIP ports beyond that.
const (
	MaxFronts    = 1 << 16
	MaxEndpoints = 1 << 18 // of all fronts together
)

// OpKind is the kind of an Op.
type OpKind string

// The kinds of Op.
const (
	PutMember    OpKind = "put member"
	PutSlot      OpKind = "put slot"
	PutFront     OpKind = "put front"
	DeleteFront  OpKind = "delete front"
	DeleteSlot   OpKind = "delete slot"
	DeleteMember OpKind = "delete member"
)

// Op is one change of a map. Only the fields of its kind are set.
type Op struct {
	Kind     OpKind
	Key      Key
	Front    Front
	Slot     SlotKey
	Endpoint Endpoint // of the slot
	Member   MemberKey
	State    uint32 // of the member
}

func (o Op) String() string {
	switch o.Kind {
	case PutFront:
		return fmt.Sprintf("%s %s = %d: %d endpoints, affinity %ds", o.Kind, o.Key, o.Front.ID, o.Front.Count, o.Front.Affinity)
	case DeleteFront:
		return fmt.Sprintf("%s %s", o.Kind, o.Key)
	case PutSlot:
		return fmt.Sprintf("%s %d/%d = %s", o.Kind, o.Slot.Front, o.Slot.Slot, o.Endpoint.AddrPort())
	case DeleteSlot:
		return fmt.Sprintf("%s %d/%d", o.Kind, o.Slot.Front, o.Slot.Slot)
	case PutMember:
		return fmt.Sprintf("%s %d/%s = %s", o.Kind, o.Member.Front, o.Member.AddrPort(), [...]string{"draining", "target"}[o.State&1])
	}
	return fmt.Sprintf("%s %d/%s", o.Kind, o.Member.Front, o.Member.AddrPort())
}

// diff returns the Ops that change a front from old to next, which have the same ID; nil: no entry. A program that runs
// meanwhile finds an endpoint of one of the two: additions precede the front, removals follow it.
func diff(old, next *Entry) []Op {
	switch {
	case old == nil && next == nil:
		return nil
	case next == nil:
		next = &Entry{Key: old.Key, ID: old.ID}
		return append([]Op{{Kind: DeleteFront, Key: old.Key}}, removals(old, next)...)
	}
	var ops []Op
	fresh := old == nil
	if fresh {
		old = &Entry{Key: next.Key, ID: next.ID}
	}
	for _, m := range next.Members {
		if i, ok := old.find(m.Endpoint); !ok || old.Members[i].State != m.State {
			ops = append(ops, Op{Kind: PutMember, Member: MemberKey{next.ID, m.Endpoint}, State: m.State})
		}
	}
	for i, endpoint := range next.Slots {
		if i >= len(old.Slots) || old.Slots[i] != endpoint {
			ops = append(ops, Op{Kind: PutSlot, Slot: SlotKey{next.ID, uint32(i)}, Endpoint: endpoint})
		}
	}
	if fresh || old.Count != next.Count || old.Affinity != next.Affinity {
		ops = append(ops, Op{Kind: PutFront, Key: next.Key, Front: Front{ID: next.ID, Count: next.Count, Affinity: next.Affinity}})
	}
	return append(ops, removals(old, next)...)
}

func removals(old, next *Entry) (ops []Op) {
	for i := len(next.Slots); i < len(old.Slots); i++ {
		ops = append(ops, Op{Kind: DeleteSlot, Slot: SlotKey{old.ID, uint32(i)}})
	}
	for _, m := range old.Members {
		if _, ok := next.find(m.Endpoint); !ok {
			ops = append(ops, Op{Kind: DeleteMember, Member: MemberKey{old.ID, m.Endpoint}})
		}
	}
	return ops
}

func (e *Entry) find(endpoint Endpoint) (int, bool) {
	return slices.BinarySearchFunc(e.Members, endpoint, func(m Member, t Endpoint) int { return compareEndpoint(m.Endpoint, t) })
}

// leads reports whether the front has the endpoint, draining or not.
func (e *Entry) leads(endpoint Endpoint) bool {
	_, ok := e.find(endpoint)
	return ok
}
