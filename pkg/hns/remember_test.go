package hns

import (
	"errors"
	"slices"
	"testing"
)

func TestRemembered(t *testing.T) {
	var r remembered[int]
	print, objects, reads := "a", []int{1, 2}, 0
	var noPrint, noList error
	ask := func(want []int, wantReads int) {
		t.Helper()
		got, err := r.read(func() (string, error) { return print, noPrint }, func() ([]int, error) { reads++; return slices.Clone(objects), noList })
		if !errors.Is(err, noList) || err == nil && !slices.Equal(got, want) || reads != wantReads {
			t.Errorf("%v %v after %d reads, want %v after %d", got, err, reads, want, wantReads)
		}
		if len(got) > 0 {
			got[0] = 99 // the caller's own copy
		}
	}
	ask([]int{1, 2}, 1)
	ask([]int{1, 2}, 1)
	print, objects = "b", []int{3}
	ask([]int{3}, 2)
	r.forget()
	ask([]int{3}, 3)
	noPrint = errors.New("an HNS without")
	ask([]int{3}, 4)
	noPrint = nil
	ask([]int{3}, 5) // a list without a print is not kept
	print, noList = "c", errors.New("HNS is down")
	ask(nil, 6)
	noList = nil
	ask([]int{3}, 7)
	ask([]int{3}, 7)
}
