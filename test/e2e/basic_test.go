package e2e

import (
	"os"
	"testing"

	"github.com/winkube/winkube/test/lab/check"
)

// TestSamples checks on the samples what `make up` promises.
func TestSamples(t *testing.T) {
	results, err := check.Results(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	if err := check.Print(os.Stdout, results); err != nil {
		diagnose(t, "default")
		t.Fatal(err)
	}
}
