package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

var ids = regexp.MustCompile(`(?m)(Transparent) \S+`)

// TestHNS: Docker's networks and the endpoints of its containers exist in HNS, and are deleted with them.
func TestHNS(t *testing.T) {
	for _, build := range []int{14393, 20348} {
		log := &calls.Log{}
		h := hns.New(hns.Options{Build: build, Log: log})
		r := newRig(t, build)
		r.opts.HNS = func(method, path, request string) (string, error) {
			result, value, record := h.Call("HNSCall", []string{method, path, request})
			if result != 0 {
				return "", fmt.Errorf("%s (%#x)", record, uint32(result))
			}
			return value, nil
		}
		r.watch()
		want := func(when, state string) {
			t.Helper()
			ok := func() bool {
				return strings.TrimSpace(ids.ReplaceAllString(h.String(), "$1 ID")) == strings.TrimSpace(state)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := log.Wait(ctx, ok); err != nil {
				t.Fatalf("%d, %s: HNS has\n%s\nwanted is\n%s", build, when, h, state)
			}
		}
		const nat = "network NAT nat\n  subnet 172.17.0.0/16 gateway 172.17.0.1\n"
		want("begin", nat)
		config := network.CreateRequest{Name: "pods", CreateOptions: network.CreateOptions{Driver: "transparent",
			IPAM: &network.IPAM{Config: []network.IPAMConfig{{Subnet: "10.244.3.0/24", Gateway: "10.244.3.1"}}}}}
		r.wants("POST", "/networks/create", config, http.StatusCreated)
		const made = "network Transparent ID on Ethernet\n  subnet 10.244.3.0/24 gateway 10.244.3.1\n" + nat
		want("made", made)
		if status, message := r.create("web", container.Config{}, container.HostConfig{NetworkMode: "pods"}); status != http.StatusCreated {
			t.Fatalf("%d: create: %d %s", build, status, message)
		}
		of, err := r.inHNS("nat")
		endpoint := hnsEndpoint{VirtualNetwork: of.ID, IPAddress: "172.17.0.9"}
		if err == nil {
			err = r.hns("POST", "/endpoints/", endpoint, &endpoint)
		}
		if err == nil {
			err = r.hns("POST", "/endpoints/"+endpoint.ID+"/attach", map[string]any{"SystemType": "Host", "CompartmentId": 1}, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.wants("POST", "/containers/web/start", nil, http.StatusNoContent)
		if !strings.Contains(h.String(), "172.17.0.9") {
			t.Errorf("%d: the host's own endpoint is gone:\n%s", build, h)
		}
		if err := r.hns("DELETE", "/endpoints/"+endpoint.ID, nil, nil); err != nil {
			t.Error(err)
		}
		if !strings.Contains(h.String(), "endpoint local 10.244.3.2") || !strings.Contains(h.String(), "attached to ") {
			t.Errorf("%d: no endpoint of the container:\n%s", build, h)
		}
		lagging := r.get("/containers/json") // as for a moment after the event
		r.listed.Store(&lagging)
		r.wants("POST", "/containers/web/kill", nil, http.StatusNoContent)
		want("killed", made)
		r.listed.Store(nil)
		h.Crash()
		if status, message := r.call("POST", "/containers/web/start", nil, nil); status != http.StatusInternalServerError || !strings.Contains(message, "hnsCall failed") {
			t.Errorf("%d: a start while HNS is down: %d %s", build, status, message)
		}
		h.Start()
		r.wants("DELETE", "/networks/pods", nil, http.StatusNoContent)
		want("removed", nat)
		config.Name, config.Driver, config.Options = "pods2", "l2bridge", map[string]string{optionInterface: "Ethernet 7"}
		r.wants("POST", "/networks/create", config, http.StatusInternalServerError) // HNS has no such adapter
		r.wants("GET", "/networks/pods2", nil, http.StatusNotFound)
	}
}

func (r *rig) wants(method, path string, body any, status int) {
	r.t.Helper()
	if got, message := r.call(method, path, body, nil); got != status {
		r.t.Fatalf("%s %s: %d %s, want %d", method, path, got, message, status)
	}
}

// get returns an answer of the engine beneath.
func (r *rig) get(path string) []byte {
	r.t.Helper()
	var answer json.RawMessage
	if err := r.ask(r.t.Context(), path, &answer); err != nil {
		r.t.Fatal(err)
	}
	return answer
}

// watch runs Watch until the test ends.
func (r *rig) watch() {
	ctx, cancel := context.WithCancel(r.t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- r.Watch(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}
