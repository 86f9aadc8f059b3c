package docker

import (
	"net/http"
	"slices"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// TestCurrent: the engine is asked about itself again only if its last answer is old or something suggests that it no longer holds.
func TestCurrent(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	r := fakeRig(t, dockertest.Options{Version: "28.5.2", APIVersion: "1.51"}, func(c *Config) { c.Clock = clock })
	current := func(why, version string, missing, asked bool) {
		t.Helper()
		r.fake.Requests(true)
		info, err := r.Current(t.Context())
		if err != nil || info.Version != version || info.DefaultRuntime.Missing != missing {
			t.Errorf("%s: %+v, %v", why, info, err)
		}
		if got := r.fake.Requests(false); slices.Contains(got, "GET /info") != asked {
			t.Errorf("%s: requests %q, wanted GET /info: %v", why, got, asked)
		}
	}
	current("first", "28.5.2", false, true)
	current("second", "28.5.2", false, false)
	clock.Step(4 * time.Minute)
	current("after 4 minutes", "28.5.2", false, false)
	clock.Step(time.Minute)
	current("after 5 minutes", "28.5.2", false, true)
	r.Doubt()
	current("doubted", "28.5.2", false, true)
	r.fake.Upgrade("29.1.0", "1.52", "1.44")
	current("an engine with another API", "29.1.0", false, true)
	current("the same engine", "29.1.0", false, false)

	for _, method := range []string{http.MethodHead, http.MethodGet} {
		r.fake.Fail(method+" /_ping", 1, http.StatusInternalServerError, "busy")
	}
	if info, err := r.Current(t.Context()); err == nil {
		t.Errorf("%+v of an engine that does not answer a ping", info)
	}
	current("after a failure", "29.1.0", false, true)

	changes := r.Changes(t.Context())
	<-changes // connected
	current("events follow", "29.1.0", false, true)
	current("events go on", "29.1.0", false, false)
	dockertest.Reload(r.fake, true)
	for deadline := time.Now().Add(10 * time.Second); ; { // the event has arrived when the next answer shows it
		info, err := r.Current(t.Context())
		if err == nil && info.DefaultRuntime.Missing {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("a reload is not noticed: %+v, %v", info, err)
		}
	}
	current("reloaded", "29.1.0", true, false)
	r.fake.Restart()
	for up := false; !up; {
		select {
		case <-changes:
			up = true
		case <-time.After(time.Millisecond): // until the stream waits for its next attempt
			clock.Step(100 * time.Millisecond)
		}
	}
	current("restarted", "29.1.0", true, true)
}
