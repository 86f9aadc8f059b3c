package start

import (
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// TestMessagesGo: containers write termination messages without a limit, so only those of this attempt and the last one stay.
func TestMessagesGo(t *testing.T) {
	s := newStage(t)
	p := stagePod()
	for n := range 5 {
		var in pod.Inputs
		if err := s.resolver().files(p, &p.Spec.Containers[0], pod.Attempt{Kind: podspec.App, Number: n}, &in); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for name := range s.files {
		if strings.HasPrefix(name, "containers/") {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if want := []string{"containers/app/termination-3", "containers/app/termination-4"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
