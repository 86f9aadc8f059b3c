package app

import (
	"bytes"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/record"
)

// TestRecordRefuses: an error is one line, nothing is changed before it, and no file is left behind.
func TestRecordRefuses(t *testing.T) {
	fake := dockertest.New(dockertest.Options{})
	server := httptest.NewServer(fake)
	defer server.Close()
	endpoint := "--docker-endpoint=tcp://" + server.Listener.Addr().String()
	dir := t.TempDir()
	there, fresh := filepath.Join(dir, "there"), filepath.Join(dir, "new")
	if err := os.WriteFile(there, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		var out bytes.Buffer
		command := newHostDoctorCommand(&out)
		command.SetArgs(append(args, endpoint))
		command.SilenceUsage, command.SilenceErrors = true, true
		return command.ExecuteContext(t.Context())
	}
	elevated, _ := host.Elevated()
	if _, err := host.NodeAddress(""); err != nil || runtime.GOOS != "linux" {
		elevated = false // the rest needs an address of this machine, and an engine of its system: this one runs Linux containers
	}
	for _, test := range []struct {
		args  []string
		wants string
		root  bool // detected only with administrator rights
	}{
		{[]string{"--record="}, "--record: want the name of a new file", false},
		{[]string{"--record=" + there}, "--record=" + there + ": want the name of a new file", false},
		{[]string{"--record-image=x"}, "--record-image=x: it is for --record, which is missing", false},
		{[]string{"--record=" + fresh, "--pod-cidr=x"}, "--pod-cidr", true},
		{[]string{"--record=" + fresh, "--record-image=none:1"}, "--record-image=none:1: Docker has no such image that fits this host", true},
	} {
		if test.root && !elevated {
			continue
		}
		if err := run(test.args...); err == nil || !strings.Contains(err.Error(), test.wants) {
			t.Errorf("%q: %v, want %q", test.args, err, test.wants)
		}
		if _, err := os.Lstat(fresh); err == nil {
			t.Errorf("%q left a file", test.args)
		}
	}
	node, err := docker.New(docker.Config{Host: strings.TrimPrefix(endpoint, "--docker-endpoint="), Node: "node1", Platform: pod.Platform{OS: "linux"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Networks.EnsureNetwork(t.Context(), pod.EngineNetwork{Name: "winkube", Driver: "bridge", Labels: map[string]string{network.LabelPods: "pods"}}); err != nil {
		t.Fatal(err)
	}
	if err := run("--record=" + fresh); elevated && (err == nil || !strings.Contains(err.Error(), `this host is a node, or an earlier recording was killed: Docker has the network "winkube"`)) {
		t.Errorf("a node: %v", err)
	}
}

// TestRecordSteps: the announced steps for a host of each build, in order.
func TestRecordSteps(t *testing.T) {
	l := &life{rec: record.New(), image: "pause", pods: netip.MustParsePrefix(recordRange), cfg: network.Config{Mode: network.HostGateway, Platform: pod.Platform{OS: "linux"}}}
	var names []string
	for _, s := range l.steps() {
		names = append(names, s.Name)
	}
	if !slices.Equal(names[:3], []string{"host", "network", "container"}) || names[len(names)-1] != "host again" {
		t.Errorf("steps: %q", names)
	}
	if l.networkName() != "winkube" {
		t.Errorf("the network is called %q", l.networkName())
	}
}
