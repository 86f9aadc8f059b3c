package hns

import "strings"

// ID is the GUID of an object. HNS accepts GUIDs in any case but writes them in two forms: its second API in lower
// case, its first in upper case. Only this package converts them, so == reports whether two IDs name the same object.
// The zero ID names none.
type ID struct{ guid string }

// IDOf parses a GUID from HNS or the engine; "" is the zero ID.
func IDOf(guid string) ID { return ID{strings.ToLower(guid)} }

// String returns the GUID as the second HNS API writes it.
func (id ID) String() string { return id.guid }

// Upper returns the GUID as the first HNS API writes it. Docker lists networks with that API and compares their IDs
// with its option hnsid, case-sensitively (moby daemon/daemon_windows.go initNetworkController).
func (id ID) Upper() string { return strings.ToUpper(id.guid) }

// Compare orders IDs for sorting.
func (id ID) Compare(other ID) int { return strings.Compare(id.guid, other.guid) }

// IDsOf parses a list of GUIDs.
func IDsOf(guids []string) []ID {
	out := make([]ID, len(guids))
	for i, guid := range guids {
		out[i] = IDOf(guid)
	}
	return out
}

// guids is the inverse of IDsOf.
func guids(ids []ID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}
