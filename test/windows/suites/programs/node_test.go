package programs

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// services and sources are the registry keys of our services and of the event log's sources.
const (
	services = `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Services\`
	sources  = services + `EventLog\Application\`
)

// TestNodeJoin: on a bare server `kubelet.exe node join` registers both services and creates a Ready Node with its network; a second run changes
// nothing. `node leave`, run twice, restores registry, files, HNS, addresses and firewall. Server 2016 has only HNS v1. The test does not check
// access lists under Wine.
func TestNodeJoin(t *testing.T) {
	for _, build := range []int{14393, server2022} {
		t.Run(strconv.Itoa(build), func(t *testing.T) {
			t.Parallel()
			world, p := simulated(t, build)
			w := &walk{T: t, Prefix: p, cluster: layOut(t, p, world)}
			defer w.stop()
			before, files := world.String(), w.files()
			join := []string{`C:\new\kubelet.exe`, "node", "join", "10.0.0.1:6443", "--token=abcdef.0123456789abcdef", "--ca-cert-hash=sha256:HASH"}
			said := plain(w.run(join))
			t.Logf("\n%s", said)
			node, ok := w.cluster.Get("/api/v1/nodes/win1").(*v1.Node)
			if !ok || node.Labels["winkube.io/proxy"] != "true" || !strings.Contains(said, "Node win1: Ready\n") {
				t.Fatalf("no Node that is Ready: %+v", node)
			}
			for key, value := range w.registered() {
				if value == "" {
					t.Errorf("%s is not registered", key)
				}
			}
			if world.String() == before {
				t.Error("the host's network is as before")
			}
			if again := plain(w.run(join)); strings.Count(again, ": unchanged") < 5 { // under Wine each directory's access list appears changed each time
				t.Errorf("joining again changed something:\n%s", again)
			}
			for round := range 2 {
				t.Logf("\n%s", w.run([]string{`C:\new\kubelet.exe`, "node", "leave"}))
				for key, value := range w.registered() {
					if value != "" {
						t.Errorf("round %d leaves %s = %s", round, key, value)
					}
				}
				if after := w.files(); after != files {
					t.Errorf("round %d leaves files\n%s\nthere were\n%s", round, after, files)
				}
				if after := world.String(); after != before {
					t.Errorf("round %d leaves\n%s\nthere was\n%s", round, after, before)
				}
			}
		})
	}
}

// registered returns the registry values of our services; "" means that there is none.
func (w *walk) registered() map[string]string {
	w.Helper()
	out := map[string]string{}
	for _, name := range []string{"kubelet", "kube-proxy"} {
		for key, value := range map[string]string{services + name: "ImagePath", sources + name: "EventMessageFile"} {
			out[key], _ = w.Registry(w.Context(), key, value) // an error if the value is missing
		}
	}
	return out
}

// files returns the names below C:\, without Windows' own files, logs and the kubelet's data.
func (w *walk) files() string {
	w.Helper()
	root := w.Path(`C:\`)
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		for _, skip := range []string{"windows", "users", "ProgramData", "Program Files", "Program Files (x86)", "var/log", "var/lib/kubelet", "var/lib/winkube-proxy"} {
			if strings.EqualFold(name, skip) {
				return fs.SkipDir
			}
		}
		if err != nil || d.IsDir() {
			return err
		}
		out = append(out, name)
		return nil
	})
	if err != nil {
		w.Fatal(fmt.Errorf("cannot list files: %w", err))
	}
	return strings.Join(out, "\n")
}
