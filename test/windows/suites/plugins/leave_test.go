package plugins

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// TestLeave: `kubelet.exe node leave` on a host with a running pod has the plugins take back its endpoint and its address, and removes its containers; again
// it finds nothing.
func TestLeave(t *testing.T) {
	for _, plugin := range []string{"win-bridge", "win-overlay"} {
		for _, build := range rig.Wanted(20348) {
			t.Run(plugin, func(t *testing.T) {
				m := newMember(t, hns.Options{Build: build}, plugin)
				before := m.state()
				stop := m.start(1)
				m.set(webPod())
				m.until("the pod runs", func() bool {
					pod, _ := m.api.Get("/api/v1/namespaces/default/pods/web").(*v1.Pod)
					return pod != nil && pod.Status.Phase == v1.PodRunning && m.attached()
				})
				stop()
				end, err := m.Relay(t.Context(), `\\.\pipe\engine-2`, m.engine.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer end()
				for _, want := range []string{"networks: removed 3 containers from the network of CNI plugins", "networks: none were there"} {
					said, err := m.Finish(m.Command(t.Context(), ourKubelet(t), "node", "leave", `--root-dir=C:\kubelet`, "--docker-endpoint=npipe:////./pipe/engine-2"))
					if err != nil || !strings.Contains(said.Stdout, want) {
						t.Errorf("node leave: %v, want %q: %s", err, want, said)
					}
					if got := m.state(); got != before || len(m.containers("?all=1")) > 0 {
						t.Errorf("containers %v are left, and HNS has\n%s\nthere was\n%s", m.containers("?all=1"), got, before)
					}
				}
				leases, err := filepath.Glob(filepath.Join(m.Path(`C:\var\lib\cni\networks`), "*", "10.*"))
				if err != nil || len(leases) > 0 {
					t.Errorf("leases %q, %v are left", leases, err)
				}
			})
		}
	}
}
