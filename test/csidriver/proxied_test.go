package csidriver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/csi/drivers"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/plugins/pluginstest"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/test/csidriver"
)

// simulatedLinks are the links of the host that hack/tools/csi-proxy/simulator simulates: Wine has none.
type simulatedLinks struct{ file string }

func (l simulatedLinks) all() (map[string]string, error) {
	links := map[string]string{}
	data, err := os.ReadFile(l.file)
	if errors.Is(err, fs.ErrNotExist) {
		return links, nil
	}
	if err != nil {
		return nil, err
	}
	return links, json.Unmarshal(data, &links)
}

// Read implements mount.Links.
func (l simulatedLinks) Read(path string) (string, bool, error) {
	links, err := l.all()
	target, ok := links[strings.ToLower(path)]
	return target, ok, err
}

// Remove implements mount.Links.
func (l simulatedLinks) Remove(path string) error {
	links, err := l.all()
	if _, ok := links[strings.ToLower(path)]; err != nil || !ok {
		return err
	}
	delete(links, strings.ToLower(path))
	data, err := json.Marshal(links)
	if err != nil {
		return err
	}
	return os.WriteFile(l.file, data, 0o600)
}

// proxiedNode is a kubelet's parts beside two programs: csi-proxy, and a driver that uses it.
type proxiedNode struct {
	windowsNode
	links simulatedLinks
}

// program runs a program until the test or stop ends it.
func (n *proxiedNode) program(ready, path string, args ...string) (stop func()) {
	n.t.Helper()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	if ready != "" {
		if line, err := bufio.NewReader(stdout).ReadString('\n'); strings.TrimSpace(line) != ready {
			n.t.Fatalf("%s says %q, %v; want %s", path, line, err, ready)
		}
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = stdin.Close()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	n.t.Cleanup(stop)
	return stop
}

// startProxied starts the programs that the environment names, and the kubelet's parts for that build of Windows.
func startProxied(t *testing.T) (n *proxiedNode, restartProxy func()) {
	t.Helper()
	proxy, driver := os.Getenv("WINKUBE_CSI_PROXY"), os.Getenv("WINKUBE_CSI_DRIVER")
	if proxy == "" || driver == "" {
		t.Skip("without csi-proxy; test/windows/suites/programs TestCSIProxy runs this under Wine")
	}
	build, err := strconv.Atoi(os.Getenv("WINKUBE_BUILD"))
	if err != nil {
		t.Fatal(err)
	}
	n = &proxiedNode{windowsNode: windowsNode{Rig: volumetest.New(t, pod.Platform{OS: "windows", Build: build, SharedNetwork: true})}}
	root := n.Host.Root
	n.links = simulatedLinks{filepath.Join(t.TempDir(), "links.json")}
	n.Host.Links, n.Host.Mounts = n.links, mount.Linked{Links: n.links}
	n.running = &running{t: t, root: root, Outside: csidriver.Outside{Data: filepath.Join(t.TempDir(), "data")}}
	registry := filepath.Join(root, "plugins_registry")
	n.registry = drivers.New("n1", drivers.Parts{Counted: func(string, string, time.Duration, error, bool) {}, Clock: clock.RealClock{}, Wire: pluginstest.Loopback})
	watcher := plugins.New(plugins.Config{
		Dir: registry, Windows: true, Relist: 100 * time.Millisecond, Clock: clock.RealClock{}, Wire: pluginstest.Loopback,
		Handlers: map[string]plugins.Handler{registration.CSIPlugin: n.registry},
	})
	start := func() (stop func()) {
		return n.program("serving", proxy, "-kubelet-path="+root, "-links="+n.links.file)
	}
	stop := start()
	n.program("", driver, "--name=dir.winkube.test", "--node-id=n1", "--endpoint="+filepath.Join(root, "plugins", "dir.winkube.test", "csi.sock"),
		"--registry="+registry, "--data="+n.Data, "--csi-proxy", "--loopback")
	n.run(watcher.Run)
	n.soon(true)
	return n, func() {
		stop()
		stop = start()
	}
}

// TestProxied: two pods get a share through a driver and csi-proxy, which are separate programs, from registration to unstaging. After a
// restart of the host, which has lost the share's mapping, it is mapped again. At the end no link is left.
func TestProxied(t *testing.T) {
	n, restartProxy := startProxied(t)
	id, err := n.Make("data", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	n.Bind("data", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "dir.winkube.test", VolumeHandle: id}})
	a, b := volumetest.Pod(volumetest.ClaimVol(false)), volumetest.Pod(volumetest.ClaimVol(true))
	a.UID, b.UID = "a", "b"
	for _, boot := range []string{"1", "2"} {
		n.restart(boot)
		if boot == "2" {
			restartProxy()
		}
		for _, p := range []*v1.Pod{a, b} {
			n.MustPrepare(p)
			m, err := n.Mount(p, v1.VolumeMount{Name: "v", MountPath: `C:\data`})
			if err != nil || m.ReadOnly != (p == b) {
				t.Fatalf("pod %s: %+v, %v", p.UID, m, err)
			}
			if to, ok, err := n.links.Read(m.HostPath); to != `\\nas.winkube.test\`+id+`\` || !ok || err != nil {
				t.Errorf("pod %s gets %s, which leads to %q, %v, %v", p.UID, m.HostPath, to, ok, err)
			}
		}
	}
	for _, p := range []*v1.Pod{a, b} {
		if err := n.Clean(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
	want := "Stage OK, Publish OK, Publish OK, Stage OK, Publish OK, Publish OK, Unpublish OK, Unpublish OK, Unstage OK"
	if got := n.calls(); got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
	if left, err := n.links.all(); len(left) > 0 || err != nil {
		t.Errorf("links %q, %v", left, err)
	}
}

// TestProxiedRefused: csi-proxy makes no link outside of the kubelet's directory, and none with too long a path. The pod gets its words, and nothing is
// left.
func TestProxiedRefused(t *testing.T) {
	n, _ := startProxied(t)
	staged, target := filepath.Join(n.root, "staged"), filepath.Join(n.root, "target")
	for _, paths := range [][2]string{{`C:\windows`, target}, {staged, `C:\k\target`}} {
		if err := csidriver.AskProxy(t.Context(), paths[0], paths[1]); err == nil || !strings.Contains(err.Error(), "is not within the working directories") {
			t.Errorf("a link from %s to %s: %v", paths[1], paths[0], err)
		}
	}
	id, err := n.Make("data", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("long", 50)
	claim, pv := n.Bind("data", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "dir.winkube.test", VolumeHandle: id}})
	claim.Spec.VolumeName, pv.Name = long, long
	n.API.Volumes[long] = pv
	n.restart("1")
	p := volumetest.Pod(volumetest.ClaimVol(false))
	if _, err := n.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "exceeds maximum characters: 260") {
		t.Errorf("a PersistentVolume with a name of %d characters: %v", len(long), err)
	}
	if err := n.Clean(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if left, err := n.links.all(); len(left) > 0 || err != nil {
		t.Errorf("links %q, %v", left, err)
	}
}
