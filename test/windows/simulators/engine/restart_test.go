package engine

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// TestRestart: at its start the engine finds its networks by HNS's ID, case-sensitively. It drops those with an ID in lower case, and adopts them
// without labels and options. In both cases the host's endpoint is removed on Server 2019; later its document has the network's ID in another case
// than the network's own. Docker 28 keeps labels, earlier versions do not. It adopts unknown HNS networks.
func TestRestart(t *testing.T) {
	for build, keeps := range map[int]struct{ labels, endpoint bool }{17763: {false, false}, 20348: {false, true}, 26100: {true, true}} {
		for _, upper := range []bool{false, true} {
			h := hns.New(hns.Options{Build: build, Log: &calls.Log{}})
			r := newRig(t, build)
			r.opts.HNS = func(method, path, request string) (string, error) {
				result, value, record := h.Call("HNSCall", []string{method, path, request})
				if result != 0 {
					return "", fmt.Errorf("%s (%#x)", record, uint32(result))
				}
				return value, nil
			}
			make := func(name string) hnsNetwork {
				var made hnsNetwork
				err := r.hns("POST", "/networks/", hnsNetwork{Name: name, Type: "L2Bridge", Subnets: []hnsSubnet{{"10.244.3.0/24", "10.244.3.1"}}}, &made)
				if err != nil {
					t.Fatal(err)
				}
				return made
			}
			pods, others := make("pods"), make("others")
			id := strings.ToLower(pods.ID)
			if upper {
				id = pods.ID
			}
			r.wants("POST", "/networks/create", network.CreateRequest{Name: "pods", CreateOptions: network.CreateOptions{Driver: "l2bridge", Labels: map[string]string{"ours": "yes"},
				Options: map[string]string{optionID: id, optionName: "pods", optionNAT: "true"},
				IPAM:    &network.IPAM{Config: []network.IPAMConfig{{Subnet: "10.244.3.0/24", Gateway: "10.244.3.2"}}}}}, http.StatusCreated)
			if err := r.hns("POST", "/endpoints/", hnsEndpoint{VirtualNetwork: pods.ID, IPAddress: "10.244.3.2"}, nil); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a second restart changes nothing
				if err := r.discover(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			what := fmt.Sprintf("%d, upper %t", build, upper)
			var found network.Inspect
			if status, message := r.call("GET", "/networks/pods", nil, &found); status != http.StatusOK {
				t.Fatalf("%s: %d %s", what, status, message)
			}
			if found.Options[optionID] != pods.ID || (found.Options[optionNAT] == "true") != upper || (found.Labels["ours"] == "yes") != (upper && keeps.labels) {
				t.Errorf("%s: options %v, labels %v", what, found.Options, found.Labels)
			}
			if strings.Contains(h.String(), "endpoint local 10.244.3.2") != keeps.endpoint {
				t.Errorf("%s: the host's endpoint is there: %t, want %t:\n%s", what, !keeps.endpoint, keeps.endpoint, h)
			}
			var all []network.Inspect
			r.call("GET", "/networks", nil, &all)
			names := map[string]string{}
			for _, n := range all {
				names[n.Name] = n.Options[optionID]
			}
			if names["others"] != others.ID || names["pods"] != pods.ID {
				t.Errorf("%s: the engine has %v", what, names)
			}
			r.wants("POST", "/networks/create", network.CreateRequest{Name: "others", CreateOptions: network.CreateOptions{Driver: "transparent"}}, http.StatusConflict)
			r.wants("GET", "/networks/others", nil, http.StatusOK)
			r.wants("DELETE", "/networks/others", nil, http.StatusNoContent)
			r.wants("DELETE", "/networks/pods", nil, http.StatusNoContent)
			if strings.Contains(h.String(), "L2Bridge") {
				t.Errorf("%s: HNS still has\n%s", what, h)
			}
		}
	}
}

// TestContainersEnd: containers end with the engine, whether it is stopped or killed, and lose their endpoints. Started again, they have new ones.
func TestContainersEnd(t *testing.T) {
	h := hns.New(hns.Options{Build: 20348, Log: &calls.Log{}})
	r := newRig(t, 20348)
	r.opts.HNS = func(method, path, request string) (string, error) {
		result, value, record := h.Call("HNSCall", []string{method, path, request})
		if result != 0 {
			return "", fmt.Errorf("%s (%#x)", record, uint32(result))
		}
		return value, nil
	}
	if err := r.discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, message := r.create("web", container.Config{}, container.HostConfig{}); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, message)
	}
	former := ""
	start := func() {
		t.Helper()
		r.wants("POST", "/containers/web/start", nil, http.StatusNoContent)
		var all []hnsEndpoint
		if err := r.hns("GET", "/endpoints/", nil, &all); err != nil || len(all) != 1 || all[0].ID == former {
			t.Fatalf("%v, endpoints %+v, formerly %s", err, all, former)
		}
		former = all[0].ID
	}
	ended := func(what string, code int) {
		t.Helper()
		var c container.InspectResponse
		if status, message := r.call("GET", "/containers/web/json", nil, &c); status != http.StatusOK {
			t.Fatalf("%s: %d %s", what, status, message)
		}
		if c.State.Running || c.State.ExitCode != code {
			t.Errorf("%s: running %t, exit code %d, want %d", what, c.State.Running, c.State.ExitCode, code)
		}
		if strings.Contains(h.String(), "endpoint") {
			t.Errorf("%s: HNS has\n%s", what, h)
		}
	}
	start()
	if err := r.discover(t.Context()); err != nil { // a start without a stop before
		t.Fatal(err)
	}
	ended("killed", 255)
	start()
	if err := r.shutDown(); err != nil {
		t.Fatal(err)
	}
	ended("stopped", 3221225786)
	if err := r.discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended("started again", 3221225786)
	start()
	r.wants("POST", "/containers/web/kill", nil, http.StatusNoContent)
	var c container.InspectResponse
	if r.call("GET", "/containers/web/json", nil, &c); c.State.ExitCode != 137 {
		t.Errorf("a container that ended otherwise has the exit code %d", c.State.ExitCode)
	}
}

// TestEndpointOfOthers: a client that gives a container an endpoint as soon as it runs keeps it, even if the engine has not answered yet.
func TestEndpointOfOthers(t *testing.T) {
	h := hns.New(hns.Options{Build: 17763, Log: &calls.Log{}})
	r := newRig(t, 17763)
	call := func(method, path, request string) (string, error) {
		result, value, record := h.Call("HNSCall", []string{method, path, request})
		if result != 0 {
			return "", fmt.Errorf("%s (%#x)", record, uint32(result))
		}
		return value, nil
	}
	r.opts.HNS = call
	var network hnsNetwork
	var endpoint hnsEndpoint
	if err := r.hns("POST", "/networks/", hnsNetwork{Name: "pods", Type: "L2Bridge", Subnets: []hnsSubnet{{"10.244.3.0/24", "10.244.3.1"}}}, &network); err != nil {
		t.Fatal(err)
	}
	if err := r.hns("POST", "/endpoints/", hnsEndpoint{VirtualNetwork: network.ID, IPAddress: "10.244.3.7"}, &endpoint); err != nil {
		t.Fatal(err)
	}
	if status, message := r.create("web", container.Config{}, container.HostConfig{NetworkMode: "none"}); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, message)
	}
	var c container.InspectResponse
	if err := r.ask(t.Context(), "/containers/web/json", &c); err != nil {
		t.Fatal(err)
	}
	attached := false
	r.opts.HNS = func(method, path, request string) (string, error) {
		if !attached && r.isRunning(t.Context(), c.ID) {
			attached = true
			if _, err := call("POST", "/endpoints/"+endpoint.ID+"/attach", fmt.Sprintf(`{"ContainerId":%q,"SystemType":"Container"}`, c.ID)); err != nil {
				t.Error(err)
			}
		}
		return call(method, path, request)
	}
	r.wants("POST", "/containers/web/start", nil, http.StatusNoContent)
	if !attached || !strings.Contains(h.String(), "10.244.3.7") {
		t.Errorf("attached %t, HNS has\n%s", attached, h)
	}
	r.wants("POST", "/containers/web/kill", nil, http.StatusNoContent)
	r.wants("POST", "/containers/web/start", nil, http.StatusNoContent)
	if strings.Contains(h.String(), "10.244.3.7") {
		t.Errorf("the endpoint of the former run is left in\n%s", h)
	}
}
