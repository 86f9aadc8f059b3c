package kinds

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
)

// issuer is an API server whose clock is ahead of ours.
type issuer struct {
	clock *testclock.FakePassiveClock
	ahead time.Duration
}

func (i issuer) Token(_ context.Context, _, _ string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r = r.DeepCopy()
	r.Status.Token = "token"
	r.Status.ExpirationTimestamp = metav1.NewTime(i.clock.Now().Add(i.ahead + time.Duration(*r.Spec.ExpirationSeconds)*time.Second))
	return r, nil
}

// TestTokenClock: a token is renewed when four fifths of its life have gone by, or when the clock says so; the API server's clock does not
// matter.
func TestTokenClock(t *testing.T) {
	now := time.Now()
	renew := now.Add(48 * time.Minute)
	for _, c := range []struct {
		name string
		now  time.Time
		want bool
	}{
		{"nothing", now, false},
		{"time goes by", now.Add(48 * time.Minute), true},
		{"the machine slept, or the clock was set forward", now.Round(0).Add(24 * time.Hour), true},
		{"the clock was set back", now.Round(0).Add(-24 * time.Hour), false},
	} {
		if got := passed(c.now, renew); got != c.want {
			t.Errorf("%s: renewed %t, want %t", c.name, got, c.want)
		}
	}
	for _, ahead := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		clock := testclock.NewFakePassiveClock(now)
		k := &tokens{api: issuer{clock, ahead}, clock: clock}
		got, err := k.request(t.Context(), &v1.Pod{}, tokenKey{account: "default", seconds: 3600})
		if err != nil {
			t.Fatal(err)
		}
		begin := clock.Now()
		if got.renew != begin.Add(48*time.Minute) || got.expires != begin.Add(time.Hour) {
			t.Errorf("API server ahead by %s: renewed after %s, expires after %s", ahead, got.renew.Sub(begin), got.expires.Sub(begin))
		}
	}
}
