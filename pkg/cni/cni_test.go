package cni

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// stage has an agent's directories with one network of fake plugins (plugin_test.go).
type stage struct {
	*testing.T
	cfg Config
}

func newStage(t *testing.T, conf string) *stage {
	t.Helper()
	dir := t.TempDir()
	s := &stage{T: t, cfg: Config{ConfDir: filepath.Join(dir, "conf"), BinDirs: []string{filepath.Join(dir, "none"), filepath.Join(dir, "bin")},
		StateDir: filepath.Join(dir, "state")}}
	for _, sub := range []string{"conf", "bin", "leases"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fake", "second"} {
		link := os.Symlink
		if runtime.GOOS == "windows" { // users may not be allowed to create symbolic links
			name, link = name+".exe", copyFile
		}
		if err := link(exe, filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if conf != "" {
		s.conf("10-net.conflist", conf)
	}
	return s
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

func (s *stage) conf(name, text string) {
	s.Helper()
	text = strings.ReplaceAll(text, "LEASES", filepath.ToSlash(s.leaseDir()))
	if err := os.WriteFile(filepath.Join(s.cfg.ConfDir, name), []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) leaseDir() string { return filepath.Join(filepath.Dir(s.cfg.ConfDir), "leases") }

// leases are the containers that the fake network considers attached.
func (s *stage) leases() (ids []string) {
	entries, err := os.ReadDir(s.leaseDir())
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == "" {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// plugins returns the Plugins of a newly started agent.
func (s *stage) plugins() *Plugins {
	s.Helper()
	p, err := New(s.cfg)
	if err != nil {
		s.Fatal(err)
	}
	if _, _, err := p.Load(s.Context()); err != nil {
		s.Fatal(err)
	}
	return p
}

// files lists the files on disk.
func (s *stage) files() (names []string) {
	for _, pattern := range []string{"attachments/*", "cache/results/*"} {
		found, err := filepath.Glob(filepath.Join(s.cfg.StateDir, pattern))
		if err != nil {
			s.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

const twoPlugins = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES", "behave": "dual"},
 {"type": "second", "leases": "LEASES", "capabilities": {"portMappings": true, "bandwidth": true, "dns": true}}]}`

func attachment(id string) Attachment {
	return Attachment{ContainerID: id, SandboxID: id, Netns: "/proc/1/ns/net", Namespace: "shop", Name: "web", UID: "u-1",
		Ports: []PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}, Bandwidth: &Bandwidth{IngressRate: 1e6, IngressBurst: 100},
		DNS: &DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"svc.cluster.local"}, Options: []string{"ndots:5"}}}
}

func TestLifeOfAnAttachment(t *testing.T) {
	s := newStage(t, twoPlugins)
	p := s.plugins()
	want := []netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00::7")}
	for range 2 { // the second call must not run plugins: the fake refuses to add twice
		got, err := p.Add(t.Context(), attachment("c1"))
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("Add: %v, %v; want %v", got, err, want)
		}
	}
	p = s.plugins() // another agent
	if got, ok := p.Attached("c1", "/proc/1/ns/net"); !ok || !slices.Equal(got, want) {
		t.Errorf("after a restart: %v, %t; want %v", got, ok, want)
	}
	if _, ok := p.Attached("c1", "/proc/2/ns/net"); ok {
		t.Error("an attachment of another namespace counts")
	}
	if err := p.Check(t.Context(), "c1"); err != nil {
		t.Errorf("Check: %v", err)
	}
	a := attachment("c1")
	a.Netns = "/proc/self/ns/net" // the infra container was restarted by another program
	if _, err := p.Add(t.Context(), a); err != nil {
		t.Errorf("Add to the new namespace: %v", err)
	}
	if err := os.Remove(filepath.Join(s.leaseDir(), "c1")); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context(), "c1"); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("Check of what is lost: %v", err)
	}
	for range 2 {
		if err := p.Del(t.Context(), "c1", "/proc/self/ns/net"); err != nil {
			t.Errorf("Del: %v", err)
		}
	}
	if left := append(s.leases(), s.files()...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBorrowedNamespaceIsOnlyForgotten(t *testing.T) {
	s := newStage(t, `{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES", "behave": "windows"}]}`)
	p := s.plugins()
	a := Attachment{ContainerID: "box", SandboxID: "box", Netns: "none", Namespace: "shop", Name: "web", UID: "u"}
	b := a
	b.ContainerID, b.Netns, b.Borrowed = "app", "container:box", true
	for _, x := range []Attachment{a, b} {
		if _, err := p.Add(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Del(t.Context(), "app", "container:box"); err != nil || !slices.Equal(s.leases(), []string{"app", "box"}) {
		t.Errorf("Del of a container: %v, leases %v; want no plugin to be asked", err, s.leases())
	}
	if err := p.Del(t.Context(), "box", "none"); err != nil || !slices.Equal(s.leases(), []string{"app"}) {
		t.Errorf("Del of the sandbox: %v, leases %v", err, s.leases())
	}
	if left := s.files(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBadPlugins(t *testing.T) {
	for behave, want := range map[string]string{
		"rubbish": `printed something other than JSON: "Segmentation fault (core dumped)"`, "nothing": `plugin type="fake" failed (add)`,
		"fail": "no address left", "die": "exit status 3: out of memory", "noip": "returned no address for the pod",
	} {
		t.Run(behave, func(t *testing.T) {
			s := newStage(t, fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES", "behave": %q}]}`, behave))
			_, err := s.plugins().Add(t.Context(), attachment("c1"))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"net"`) {
				t.Errorf("%v\nwant %s", err, want)
			}
			if left := append(s.leases(), s.files()...); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// child waits for the process that a hanging plugin started, and returns its PID.
func (s *stage) child() int {
	s.Helper()
	var pid int
	err := wait.PollUntilContextTimeout(s.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		data, err := os.ReadFile(filepath.Join(s.leaseDir(), "child.pid"))
		if err != nil {
			return false, nil
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil, nil
	})
	if err != nil {
		s.Fatal("the plugin did not start")
	}
	return pid
}

func (s *stage) awaitEnd(pid int) {
	s.Helper()
	err := wait.PollUntilContextTimeout(s.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return ended(pid), nil
	})
	if err != nil {
		s.Errorf("process %d, which a plugin had started, goes on", pid)
	}
}

func ended(pid int) bool {
	if runtime.GOOS == "windows" { // exited processes cannot be found there
		process, err := os.FindProcess(pid)
		if err == nil {
			process.Release()
		}
		return err != nil
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(data), ") Z ")
}

const hanging = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES", "behave": "hang"}]}`

func TestHangingPluginEndsWithItsChildren(t *testing.T) {
	s := newStage(t, hanging)
	started := func() bool {
		_, err := os.Stat(filepath.Join(s.leaseDir(), "child.pid"))
		return err == nil
	}
	for s.cfg.Patience = 2 * time.Second; !started() && !t.Failed(); s.cfg.Patience *= 2 { // a busy machine needs longer to start it
		_, err := s.plugins().Add(t.Context(), attachment("c1"))
		if want := fmt.Sprintf(`plugin type="fake" failed (add): it did not end within %s`, s.cfg.Patience); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	s.awaitEnd(s.child())
	if left := append(s.leases(), s.files()...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An agent is killed while a plugin has done part of its work; the next agent ends the plugin and releases that part.
func TestKilledAgentLeaksNothing(t *testing.T) {
	s := newStage(t, hanging)
	agent, err := spawn(agentVariable + "=" + strings.Join([]string{s.cfg.ConfDir, s.cfg.BinDirs[1], s.cfg.StateDir}, ","))
	if err != nil {
		t.Fatal(err)
	}
	child := s.child()
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.leases(), []string{"c1"}) {
		t.Fatalf("leases %v; want that of c1", s.leases())
	}
	p := s.plugins()
	s.awaitEnd(child)
	if _, ok := p.Attached("c1", "/proc/1/ns/net"); ok {
		t.Error("what was begun counts as done")
	}
	there := map[string]bool{"c1": true}
	existing := func(context.Context, []string) (map[string]bool, error) { return maps.Clone(there), nil }
	if err := p.Collect(t.Context(), existing); err != nil || len(s.leases()) != 1 {
		t.Errorf("Collect while the container is there: %v, leases %v", err, s.leases())
	}
	clear(there)
	if err := p.Collect(t.Context(), existing); err != nil {
		t.Error(err)
	}
	if left := append(s.leases(), s.files()...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCollectTellsTheNetwork(t *testing.T) {
	s := newStage(t, `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES"}]}`)
	p := s.plugins()
	for _, id := range []string{"c1", "c2"} {
		if _, err := p.Add(t.Context(), attachment(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.leaseDir(), "stray"), nil, 0o644); err != nil { // without a record
		t.Fatal(err)
	}
	if err := p.Collect(t.Context(), func(context.Context, []string) (map[string]bool, error) { return map[string]bool{"c2": true}, nil }); err != nil {
		t.Error(err)
	}
	if got := s.leases(); !slices.Equal(got, []string{"c2"}) {
		t.Errorf("leases %v; want c2's alone", got)
	}
}

func TestLoad(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string // part of the network's name, or of the error
	}{
		{"empty", nil, "conf (--cni-conf-dir) has no network; want a file *.conflist, *.conf or *.json"},
		{"other files", map[string]string{"readme.txt": "hello"}, "has no network"},
		{"not JSON", map[string]string{"1.conf": "{"}, "has no usable network: 1.conf: "},
		{"no plugins", map[string]string{"1.conflist": `{"name": "a", "cniVersion": "1.0.0", "plugins": []}`}, "1.conflist: "},
		{"first by name", map[string]string{"2.conflist": twoPlugins, "1.conf": `{"name": "one", "cniVersion": "0.2.0", "type": "fake"}`}, "=one"},
		{"first that can be read", map[string]string{"1.json": "x", "2.conflist": twoPlugins}, "=net"},
		{"no such plugin", map[string]string{"1.conf": `{"name": "one", "cniVersion": "1.0.0", "type": "flannel"}`}, `needs the plugin "flannel", which is not in `},
		{"not ready", map[string]string{"1.conflist": `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES", "behave": "starting"}]}`}, "still starting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, "")
			for name, text := range test.files {
				s.conf(name, text)
			}
			p, err := New(s.cfg)
			if err != nil {
				t.Fatal(err)
			}
			name, _, err := p.Load(t.Context())
			if want, ok := strings.CutPrefix(test.want, "="); ok && (err != nil || name != want) || !ok && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%q, %v; want %s", name, err, test.want)
			}
			if _, addErr := p.Add(t.Context(), attachment("c1")); err != nil && (addErr == nil || !strings.Contains(addErr.Error(), s.cfg.ConfDir)) {
				t.Errorf("Add without a network: %v", addErr)
			}
		})
	}
}

// The files of the older instructions for Windows work unchanged.
func TestOlderConfigurations(t *testing.T) {
	for file, plugin := range map[string]string{"wincni.conf": "wincni.exe", "ovn.conf": "ovn_cni.exe", "win-bridge.conf": "win-bridge", "win-overlay.conflist": "win-overlay"} {
		list, err := read(filepath.Join("testdata", file))
		if err != nil || list.Plugins[0].Network.Type != plugin {
			t.Errorf("%s: %+v, %v; want plugin %s", file, list, err, plugin)
		}
	}
}

func TestUnreadableRecordIsLeftAlone(t *testing.T) {
	s := newStage(t, twoPlugins)
	path := filepath.Join(s.cfg.StateDir, "attachments", "c9.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"ContainerID": "other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.plugins().Records(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
