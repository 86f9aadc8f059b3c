package hns

import (
	"slices"
	"testing"
)

// TestID: one GUID is one ID, in any case that HNS writes.
func TestID(t *testing.T) {
	const lower, upper = "a33529ee-9a3c-4a2d-b8b9-a0d9c8a1d6f0", "A33529EE-9A3C-4A2D-B8B9-A0D9C8A1D6F0"
	if IDOf(lower) != IDOf(upper) || IDOf(lower).String() != lower || IDOf(lower).Upper() != upper {
		t.Errorf("%s and %s are %v and %v", lower, upper, IDOf(lower), IDOf(upper))
	}
	if IDOf("") != (ID{}) || IDOf(lower) == (ID{}) {
		t.Error("the zero ID names nothing")
	}
	if got := guids(IDsOf([]string{upper, "b"})); !slices.Equal(got, []string{lower, "b"}) {
		t.Errorf("%v", got)
	}
	if IDOf(upper).Compare(IDOf(lower)) != 0 || IDOf("A").Compare(IDOf("b")) >= 0 {
		t.Error("order follows the case")
	}
}
