package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/pod"
)

// plugins are in-memory CNI plugins.
type plugins struct {
	mu     sync.Mutex
	broken error
	has    map[string]cni.Attachment
	log    []string
	maps   bool // portMappings
	loads  chan struct{}
}

var address = netip.MustParseAddr("10.244.1.7")

func (p *plugins) Load(context.Context) (name, file string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.loads <- struct{}{}:
	default:
	}
	return "lab", "/etc/cni/net.d/10-lab.conflist", p.broken
}

func (p *plugins) Add(_ context.Context, a cni.Attachment) ([]netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil, p.broken
	}
	p.has[a.ContainerID] = a
	line := fmt.Sprintf("ADD %s of %s/%s to %s in %s, borrowed %t, %d ports", a.ContainerID, a.Namespace, a.Name, a.Netns, a.SandboxID, a.Borrowed, len(a.Ports))
	if a.DNS != nil {
		line += fmt.Sprintf(", dns %v search %v options %v", a.DNS.Servers, a.DNS.Searches, a.DNS.Options)
	}
	p.log = append(p.log, line)
	return []netip.Addr{address}, nil
}

func (p *plugins) Attached(id, netns string) ([]netip.Addr, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.has[id]; !ok || a.Netns != netns {
		return nil, false
	}
	return []netip.Addr{address}, true
}

func (p *plugins) MapsPorts(string) bool { return p.maps }

func (p *plugins) Del(_ context.Context, id, netns string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, fmt.Sprintf("DEL %s from %q", id, netns))
	delete(p.has, id)
	return nil
}

func (p *plugins) Check(context.Context, string) error { return errors.New("no route") }

func (p *plugins) Records() (out []cni.Attachment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.has {
		out = append(out, a)
	}
	return out
}

func (p *plugins) Collect(ctx context.Context, existing cni.Existing) error {
	var ids []string
	for _, a := range p.Records() {
		ids = append(ids, a.ContainerID)
	}
	there, err := existing(ctx, ids)
	for _, a := range p.Records() {
		if err == nil && !there[a.ContainerID] {
			err = p.Del(ctx, a.ContainerID, "")
		}
	}
	return err
}

func newPluginsFake() *plugins {
	return &plugins{has: map[string]cni.Attachment{}, loads: make(chan struct{}, 100)}
}

func newPlugged(t *testing.T, cfg Config) *rig {
	t.Helper()
	cfg.Mode = CNI
	return newRig(t, cfg)
}

func webPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81, HostPort: 8081}}}}}}
}

func TestAttachByPlugins(t *testing.T) {
	for _, test := range []struct {
		name     string
		platform pod.Platform
		observed pod.Observed
		want     string // containers that must be attached, and how
	}{
		{"linux", onLinux, pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true, PID: 42}}, Containers: []pod.Container{{ID: "app", SandboxID: "box", State: pod.Running}}},
			"ADD box of shop/web to /proc/42/ns/net in box, borrowed false, 1 ports"},
		{"windows", pod.Platform{OS: "windows", SharedNetwork: true},
			pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true, PID: 42}}, Containers: []pod.Container{{ID: "app", SandboxID: "box", State: pod.Running}}},
			"ADD box of shop/web to none in box, borrowed false, 1 ports, dns [10.96.0.10] search [shop.svc.cluster.local] options [ndots:5]\nADD app of shop/web to container:box in box, borrowed true, 1 ports, dns [10.96.0.10] search [shop.svc.cluster.local] options [ndots:5]"},
		{"windows without sandboxes", pod.Platform{OS: "windows"}, pod.Observed{Containers: []pod.Container{{ID: "app", State: pod.Running}, {ID: "old", State: pod.Exited}}},
			"ADD app of shop/web to none in app, borrowed false, 1 ports, dns [10.96.0.10] search [shop.svc.cluster.local] options [ndots:5]"},
		{"of another mode", onLinux, pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true, Addresses: []netip.Addr{address}}}}, ""},
		{"has ended", onLinux, pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box"}}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newPlugged(t, Config{Platform: test.platform})
			m, p := r.Manager, r.plugins
			o := test.observed
			network := m.Attachments(webPod(), o)
			for _, s := range o.Sandboxes {
				if network[pod.EngineID(s.ID)].Waits {
					if err := m.Attach(t.Context(), webPod(), pod.Member{ID: s.ID, SandboxID: s.ID, PID: s.PID}); err != nil {
						t.Error(err)
					}
				}
			}
			for _, c := range o.Containers {
				if network[pod.EngineID(c.ID)].Waits {
					if err := m.Attach(t.Context(), webPod(), pod.Member{ID: c.ID, SandboxID: c.SandboxID}); err != nil {
						t.Error(err)
					}
				}
			}
			if got := strings.Join(p.log, "\n"); got != test.want {
				t.Errorf("%s\nwant\n%s", got, test.want)
			}
			network = m.Attachments(webPod(), o)
			o = o.With(network)
			for _, s := range o.Sandboxes {
				if s.Running && (network[pod.EngineID(s.ID)].Waits || !slices.Equal(s.Addresses, []netip.Addr{address})) {
					t.Errorf("afterwards: %+v", s)
				}
			}
			for _, c := range o.Containers {
				if network[pod.EngineID(c.ID)].Waits || c.State == pod.Running && c.SandboxID == "" && len(c.Addresses) == 0 {
					t.Errorf("afterwards: %+v", c)
				}
			}
		})
	}
}

// TestDNSUnknown: a Windows pod does not start with names that do not resolve.
func TestDNSUnknown(t *testing.T) {
	p := webPod()
	p.Namespace = "unresolved"
	for _, test := range []struct {
		platform pod.Platform
		want     string
	}{{pod.Platform{OS: "windows"}, "cannot configure DNS in the pod's network: no such file"}, {onLinux, ""}} {
		r := newPlugged(t, Config{Platform: test.platform})
		m, plugins := r.Manager, r.plugins
		err := m.Attach(t.Context(), p, pod.Member{ID: "app"})
		if test.want == "" && (err != nil || len(plugins.log) != 1) || test.want != "" && (err == nil || err.Error() != test.want || len(plugins.log) != 0) {
			t.Errorf("%s: %v; want %q; calls %q", test.platform.OS, err, test.want, plugins.log)
		}
	}
}

func TestDetach(t *testing.T) {
	r := newPlugged(t, Config{Platform: onLinux})
	m, p := r.Manager, r.plugins
	for _, from := range []pod.Member{{ID: "box", SandboxID: "box", PID: 42}, {ID: "box", SandboxID: "box"}} { // running, and not: its process may be another by now
		if err := m.Detach(t.Context(), from); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(p.log, "\n"); got != "DEL box from \"/proc/42/ns/net\"\nDEL box from \"\"" {
		t.Error(got)
	}
}

func TestHostNetworkIsNotAttached(t *testing.T) {
	m := newPlugged(t, Config{Platform: onLinux}).Manager
	o := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true}}}
	p := webPod()
	p.Spec.HostNetwork = true
	if m.Attachments(p, o)["box"].Waits {
		t.Error("waits for a network")
	}
}

func TestBandwidth(t *testing.T) {
	for _, test := range []struct{ in, out, want string }{
		{"", "", "<nil>"}, {"10M", "", "&{10000000 2147483647 0 0}"}, {"1k", "2G", "&{1000 2147483647 2000000000 2147483647}"},
		{"10", "", `annotation kubernetes.io/ingress-bandwidth="10": want bits per second from 1k to 1P, as in 10M`}, {"1M", "fast", `annotation kubernetes.io/egress-bandwidth="fast"`},
	} {
		annotations := map[string]string{}
		for name, value := range map[string]string{ingressBandwidth: test.in, egressBandwidth: test.out} {
			if value != "" {
				annotations[name] = value
			}
		}
		got, err := bandwidth(annotations)
		if text := fmt.Sprint(got); text != test.want && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q, %q: %s, %v; want %s", test.in, test.out, text, err, test.want)
		}
	}
}

func TestPluginsNotReady(t *testing.T) {
	r := newPlugged(t, Config{Platform: onLinux})
	m, p, s, clock := r.Manager, r.plugins, r.s, r.clock
	m.SetNode(nodeWith("10.244.1.0/24"))
	p.broken = errors.New("/etc/cni/net.d has no network")
	for range 2 { // the Node's condition appears only if the fault lasts
		if err := m.sync(t.Context()); err == nil {
			t.Error("no error")
		}
		clock.Step(patience)
	}
	wantErr(t, m, "/etc/cni/net.d has no network")
	if c := m.Unavailable(); c == nil || c.Reason != "CNINotReady" || c.Ready {
		t.Errorf("condition: %+v", c)
	}
	p.broken = nil
	if err := m.sync(t.Context()); err != nil {
		t.Error(err)
	}
	wantErr(t, m, "")
	if c := m.Unavailable(); c == nil || !c.Ready {
		t.Errorf("condition afterwards: %+v", c)
	}
	if name, err := m.Join(webPod()); name != "none" || err != nil {
		t.Errorf("pods join %q, %v", name, err)
	}
	if got := s.state.String(); strings.Contains(got, "masquerade") || !strings.Contains(got, "forward: from and to 10.244.1.0/24\n") || s.state.Network != nil {
		t.Errorf("on the host: %s", s.state)
	}
}

// A new configuration is used immediately, even in a directory that did not exist, and networks of removed containers are released.
func TestFollowDirectory(t *testing.T) {
	patience := 20 * time.Second
	if runtime.GOOS == "windows" { // Wine may lose a change on a busy machine: then the timer finds it
		patience += recheck
	}
	dir := filepath.Join(t.TempDir(), "cni", "net.d")
	r := newPlugged(t, Config{Platform: onLinux})
	r.startAt(t, Config{Mode: CNI, Platform: onLinux, ConfDir: dir}, clock.RealClock{})
	m, p := r.Manager, r.plugins
	p.has["gone"], p.has["box"] = cni.Attachment{ContainerID: "gone"}, cni.Attachment{ContainerID: "box", Namespace: "shop", Name: "web"}
	m.SetNode(nodeWith())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	<-r.pods.news
	if got := r.pods.events[0]; !strings.HasPrefix(got, "shop/web  NetworkCheckFailed: ") {
		t.Error(got)
	}
	if records := p.Records(); len(records) != 1 || records[0].ContainerID != "box" {
		t.Errorf("kept: %+v", records)
	}
	for _, path := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "10-lab.conf")} {
		for len(p.loads) > 0 {
			<-p.loads
		}
		var err error
		if filepath.Ext(path) == ".conf" {
			err = os.WriteFile(path, []byte("{}"), 0o644)
		} else {
			err = os.Mkdir(path, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.loads:
		case <-time.After(patience):
			t.Fatalf("%s came and was not read", path)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDirectoryComesMeanwhile: a directory's parent is missing at first, and is created before its nearest parent is watched.
func TestDirectoryComesMeanwhile(t *testing.T) {
	root := t.TempDir()
	middle, dir := filepath.Join(root, "cni"), filepath.Join(root, "cni", "net.d")
	for _, test := range []struct{ makes, want string }{{"", root}, {middle, middle}, {dir, dir}} {
		exists := map[string]bool{root: true}
		var added []string
		at := addNearest(func(path string) error {
			if !exists[path] {
				return os.ErrNotExist
			}
			added = append(added, path)
			if path == root && test.makes != "" {
				exists[middle], exists[test.makes] = true, true
			}
			return nil
		}, dir)
		if at != test.want || added[len(added)-1] != test.want {
			t.Errorf("%q comes meanwhile: watched %q, want %s", test.makes, added, test.want)
		}
	}
}

func TestModeAndPluginsGoTogether(t *testing.T) {
	for _, cfg := range []Config{{Mode: CNI, Platform: onLinux}, {Mode: HostGateway, Platform: onLinux}} {
		var parts Parts
		if cfg.Mode != CNI {
			parts.Plugins = &plugins{}
		}
		if _, err := New(cfg, parts); err == nil {
			t.Errorf("mode %s, plugins %v: no error", cfg.Mode, parts.Plugins)
		}
	}
}
