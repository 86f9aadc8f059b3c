package kubelet

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestEngineOfAnyName: the pod network gets the engine's release number even if the engine calls itself something else. Treated as an old
// engine, its network would lack the option without which engines from 28 on disconnect other nodes' pods.
func TestEngineOfAnyName(t *testing.T) {
	for version, want := range map[string]string{"library-import": "28.", "dev": "28.", "0.0.0-20260101": "28.", "29.0.0-rc.1": "29.0.0-rc.1"} {
		server := httptest.NewServer(dockertest.New(dockertest.Options{Version: version, APIVersion: "1.56", MinAPIVersion: "1.40"}))
		t.Cleanup(server.Close)
		e, err := docker.New(docker.Config{Host: "tcp://" + server.Listener.Addr().String(), Platform: pod.Platform{OS: "linux"}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := (networkEngine{engine: e}).Version(t.Context()); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("engine %q: version %q, %v, want %s", version, got, err, want)
		}
	}
}
