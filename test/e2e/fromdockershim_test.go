package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/lab"
)

// TestFromDockershim: a host changes from a kubelet of 1.23 with dockershim to ours on the same Docker, by the commands of the guide; then once more without a
// drain.
func TestFromDockershim(t *testing.T) {
	if os.Getenv("WINKUBE_UPSTREAM") == "" {
		t.Skip("builds upstream's kubelet 1.23; only with WINKUBE_UPSTREAM=1")
	}
	ctx := t.Context()
	const shim, criDockerd = "docs/guides/migrate-dockershim.md", "docs/guides/migrate-cri-dockerd.md" // the latter has the way back
	m := newMover(t, shim)
	upstream := func() {
		t.Helper()
		m.must(cluster.InstallDockershim(ctx))
		m.served(lab.DockershimVersion)
	}
	stopped := func() {
		t.Helper()
		m.guide = shim
		m.documented("systemctl disable --now kubelet")
		m.must(cluster.RemoveUpstream(ctx))
	}
	leave := func() {
		t.Helper()
		m.guide = criDockerd
		m.leaveOurs()
		m.rebooted()
		m.guide = shim
	}
	upstream()
	images := m.images()
	m.migratesRunning("kubelet (process ", "--network-mode=cni", "--docker-endpoint=unix://"+m.host.EngineSocket(), "--pod-infra-container-image="+lab.PauseImage, "\nclusterDNS:\n")
	m.documented("kubectl drain")
	m.documented("kubectl delete node")
	stopped()
	m.piped("docker ps -aq")
	m.piped("grep /var/lib/kubelet")
	m.documented("rm -rf /etc/kubernetes")
	m.rebooted()

	if said := m.joinOurs(); strings.Contains(said, "another kubelet made") {
		t.Error("containers of dockershim are left")
	}
	m.served("v1.36.3")
	m.neverPulled(images)
	leave()

	upstream()
	m.undrained(stopped)
	leave()
}

// piped runs the pipeline in a table of the guide that begins so.
func (m *mover) piped(begin string) {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root, m.guide))
	m.must(err)
	_, rest, found := strings.Cut(string(text), "`"+begin)
	if !found {
		m.Fatalf("%s has no command %q", m.guide, begin)
	}
	rest, _, _ = strings.Cut(rest, "`")
	m.mustRun(begin + strings.ReplaceAll(rest, `\|`, "|"))
}
