package docker

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestImagesAreListedOnce: the engine is asked for its images only after they may have changed.
func TestImagesAreListedOnce(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	lists := func() (n int) {
		t.Helper()
		if _, _, err := r.ListImages(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, request := range r.fake.Requests(true) {
			if request == "GET /images/json" {
				n++
			}
		}
		return n
	}
	if first, second := lists(), lists(); first != 1 || second != 1 {
		t.Errorf("without a stream of events the engine is asked %d and %d times, want 1 each", first, second)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.Changes(ctx)
	until := func(what string, want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); lists() != want; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	until("never kept", 0)
	r.fake.AddImage(dockertest.Image{Names: []string{"new:1"}})
	until("a new image is not seen", 1)
	until("not kept again", 0)
	if list, changed, err := r.ListImages(t.Context()); err != nil || changed || !slices.ContainsFunc(list.Named, func(i v1.ContainerImage) bool { return i.Names[0] == "new:1" }) {
		t.Errorf("%v, changed %t, %v", list, changed, err)
	}
	r.fake.Restart()
	until("an engine that restarts is not asked again", 1)
	until("not kept after a restart", 0)
	cancel()
	until("kept without events", 1)
}

func TestPull(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.Clock, c.PullProgressDeadline = clock, 200*time.Millisecond })
	digest := "sha256:" + strings.Repeat("ab", 32)
	r.fake.AddRemote("docker.io/library/web:1", dockertest.Remote{
		Image: dockertest.Image{Digests: []string{"other@" + digest, "web@" + digest}, User: "www", Size: 42}, Username: "joe", Password: "right",
	})
	wrong, right := pod.Credential{Username: "joe", Password: "wrong-secret"}, pod.Credential{Username: "joe", Password: "right"}
	_, _, err := r.Pull(t.Context(), "web:1", []pod.Credential{wrong})
	if err == nil || !strings.Contains(err.Error(), "unauthorized") || !strings.Contains(err.Error(), "imagePullSecret") || strings.Contains(err.Error(), "wrong-secret") {
		t.Errorf("wrong password: %v", err)
	}
	img, used, err := r.Pull(t.Context(), "web:1", []pod.Credential{wrong, right})
	if err != nil || img.Ref != "docker-pullable://web@"+digest || img.User != "www" || img.Size != 42 || used != 1 {
		t.Errorf("%+v by credential %d, %v", img, used, err)
	}
	if again, found, err := r.Lookup(t.Context(), "docker.io/library/web:1@"+digest); err != nil || !found || again.ID != img.ID {
		t.Errorf("by digest: %+v, %v, %v", again, found, err)
	}
	r.fake.AddRemote("slow:latest", dockertest.Remote{Stall: true, Messages: []string{`{"id":"a","status":"Downloading","progressDetail":{"current":1}}`}})
	done := make(chan error, 1)
	go func() {
		_, _, err := r.Pull(t.Context(), "slow", nil)
		done <- err
	}()
	r.await("the pull", clock.HasWaiters)
	clock.Step(r.cfg.PullProgressDeadline)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no progress for 200ms") {
		t.Errorf("stalled: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := r.Pull(ctx, "slow", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("given up: %v", err)
	}
	r.fake.AddRemote("broken:latest", dockertest.Remote{Messages: []string{`{"error":"x","errorDetail":{"message":"layer is corrupt"}}`}})
	if _, _, err := r.Pull(t.Context(), "broken", nil); err == nil || err.Error() != `cannot pull image "broken": layer is corrupt` {
		t.Errorf("broken: %v", err)
	}
	r.fake.AddRemote("other:latest", dockertest.Remote{Image: dockertest.Image{OS: "windows"}})
	if _, _, err := r.Pull(t.Context(), "other", nil); err == nil || err.Error() != `cannot use image "other": it is for windows, and this node runs linux` {
		t.Errorf("another system's: %v", err)
	}
	r.fake.Fail("POST /images/create", 1, http.StatusInternalServerError, `Get "https://registry.test/v2/": dial tcp: lookup registry.test: no such host`)
	if _, _, err := r.Pull(t.Context(), "registry.test/x", []pod.Credential{wrong, right}); !errors.Is(err, pod.ErrRegistryUnavailable) {
		t.Errorf("no registry: %v", err)
	}
}
