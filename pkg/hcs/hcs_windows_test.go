package hcs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/Microsoft/hcsshim"
)

// What test/windows/cover lets the Host Compute Service have.
const simulated, unreadable = "winkube-test", "winkube-test-unreadable"

func TestMeasure(t *testing.T) {
	if _, err := Measure("winkube-test-none"); err == nil {
		t.Error("a container that is not there was measured")
	}
	got, err := Measure(simulated)
	if errors.Is(err, hcsshim.ErrComputeSystemDoesNotExist) {
		t.Skip("this Host Compute Service has no container for tests")
	}
	if err != nil {
		t.Fatal(err)
	}
	want := Statistics{CPU: 3 * time.Second, Commit: 5 << 20, PrivateWorkingSet: 4 << 20,
		Endpoints: []Endpoint{{ID: "e1", RxBytes: 1, TxBytes: 2, RxDropped: 3, TxDropped: 4}}}
	if got.CPU != want.CPU || got.Commit != want.Commit || got.PrivateWorkingSet != want.PrivateWorkingSet || !slices.Equal(got.Endpoints, want.Endpoints) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, err := Measure(unreadable); err == nil {
		t.Error("an answer that is no JSON was understood")
	}
}
