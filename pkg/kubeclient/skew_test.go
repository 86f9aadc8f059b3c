package kubeclient

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
)

func TestCheckSkew(t *testing.T) {
	for _, test := range []struct{ server, ours, want string }{
		{"v1.36.3", "v1.36.0", ""}, {"v1.37.0-alpha.1", "v1.36.3", ""}, {"v1.39.0+k3s1", "v1.36.3", ""},
		{"v1.40.0", "v1.36.3", "up to three minor versions older"}, {"v1.35.9", "v1.36.3", "never newer"},
		{"", "v1.36.3", `the API server's version is ""`}, {"v2.0.0", "v1.36.3", "no version of Kubernetes"}, {"v1.36.3", "dev", `this program's version is "dev"`},
	} {
		err := CheckSkew(test.server, test.ours)
		if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s beside %s: %v, want %q", test.ours, test.server, err, test.want)
		}
	}
}

func TestAskSkew(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(`{"gitVersion":"v1.35.1"}`))
	}))
	defer server.Close()
	for ours, want := range map[string]string{"v1.34.0": "", "v1.36.3": "never newer"} {
		if err := AskSkew(&rest.Config{Host: server.URL}, ours); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ours, err, want)
		}
	}
	server.Close()
	if err := AskSkew(&rest.Config{Host: server.URL}, "v1.36.3"); err == nil || !strings.Contains(err.Error(), "cannot read the API server's version") {
		t.Errorf("no server: %v", err)
	}
}

// upgraded returns one version after another; "" is an error.
type upgraded struct {
	versions []string
	asked    chan struct{}
}

func (u *upgraded) ServerVersion() (*version.Info, error) {
	next := u.versions[0]
	u.versions = u.versions[1:]
	u.asked <- struct{}{}
	if next == "" {
		return nil, errors.New("connection refused")
	}
	return &version.Info{GitVersion: next}, nil
}

// TestFollowVersion: each incompatible version is reported once.
func TestFollowVersion(t *testing.T) {
	server := &upgraded{versions: []string{"", "v1.36.3", "v1.40.0", "v1.40.0", "v1.36.4", "v1.35.0"}, asked: make(chan struct{})}
	clk := testclock.NewFakeClock(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan string, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		FollowVersion(ctx, server, "v1.36.3", clk, func(kind, reason, message string) { told <- kind + " " + reason + " " + message })
	}()
	for range 5 {
		<-server.asked
		clk.Step(versionEvery)
	}
	<-server.asked
	cancel()
	<-done
	close(told)
	var got []string
	for one := range told {
		got = append(got, one)
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "Warning VersionSkew the API server has version v1.40.0") || !strings.Contains(got[1], "v1.35.0") {
		t.Errorf("told was %q", got)
	}
}
