package engine_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
)

// TestOtherMode: an engine that runs containers of another system, as Docker Desktop can, is an error that says how to change that.
func TestOtherMode(t *testing.T) {
	server := httptest.NewServer(dockertest.New(dockertest.Options{}))
	defer server.Close()
	e, err := engine.New(engine.Config{Host: "tcp://" + server.Listener.Addr().String(), OS: "windows"})
	if err != nil {
		t.Fatal(err)
	}
	info, err := e.Info(t.Context())
	if err == nil || info.OS != "linux" || !strings.Contains(err.Error(), "runs linux containers, and this kubelet needs windows containers: switch Docker to windows containers") {
		t.Errorf("%+v, %v", info, err)
	}
}
