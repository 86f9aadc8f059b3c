package network

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
)

// TestNext: failures are retried at increasing intervals; a Pending after its time, regardless of earlier failures.
func TestNext(t *testing.T) {
	broken := errors.New("HNS does not run")
	cut := fmt.Errorf("some: %w", errors.Join(&Pending{2 * time.Second, errors.New("cut")}))
	paced := func(every time.Duration) *pace {
		return newPace(testclock.NewFakeClock(time.Unix(0, 0)), nil, nil, every, nil)
	}
	p := paced(recheck)
	var got []time.Duration
	for _, err := range []error{nil, broken, broken, broken, cut, broken, nil, broken} {
		got = append(got, p.next(err)/time.Second)
	}
	if want := []time.Duration{30, 1, 2, 4, 2, 1, 30, 1}; !slices.Equal(got, want) {
		t.Errorf("waits %d s, want %d s", got, want)
	}
	for _, every := range []time.Duration{recheck, recheckOld} {
		p = paced(every)
		for range 100 {
			p.next(broken)
		}
		if got := p.next(broken); got != every {
			t.Errorf("waits %s after 100 failures, want %s", got, every)
		}
	}
	for platform, want := range map[pod.Platform]time.Duration{onLinux: recheck, onServer2022: recheck, {OS: "windows", Build: 14393}: recheckOld} {
		if got := interval(platform); got != want {
			t.Errorf("%+v is compared every %s, want %s", platform, got, want)
		}
	}
}
