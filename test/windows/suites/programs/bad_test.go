package programs

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// mistake is one fault of a host or a pod, and the Event that reports it.
type mistake struct {
	name         string
	engine       dockertest.Options
	pipe         func(net.Conn) // serves the pipe in place of the engine
	flags        []string
	host, repair func(*sim.World)
	pod          func(*v1.Pod) // nil means no pod
	server       string        // version of the API server; empty means ours
	reason       string
	says         []string
}

var onWindows = dockertest.Options{OS: "windows", Build: server2022}

// mistakes need a host with HNS; TestNoContainers covers one without.
var mistakes = []mistake{
	{name: "HNS stopped", engine: onWindows, host: func(w *sim.World) { w.HNS.Crash() }, repair: func(w *sim.World) { w.HNS.Start() },
		reason: "KubeletNotReady", says: []string{"HNS is not running", "Start-Service hns"}},
	{name: "Docker in the mode of Linux containers", reason: "KubeletNotReady", says: []string{"runs linux containers", "switch Docker to windows containers"}},
	{name: "a pipe that answers rubbish", pipe: func(c net.Conn) { _, _ = c.Write([]byte("\x00\x01 220 mail ready\r\n")) },
		reason: "KubeletNotReady", says: []string{"container runtime is down", "malformed HTTP"}},
	{name: "a pipe without a server", pipe: func(net.Conn) {}, reason: "KubeletNotReady", says: []string{"container runtime is down", "EOF"}},
	{name: "wrong adapter", engine: onWindows, flags: []string{"--interface=Ethernet 7"},
		reason: "AdapterMissing", says: []string{"--interface=Ethernet 7: this host has no such network adapter; it has "}},
	{name: "an address of the pods' range is another adapter's", engine: onWindows,
		host: func(w *sim.World) {
			w.IPHelper.SetAdapter("vEthernet (other)", true, []netip.Prefix{netip.MustParsePrefix("10.244.1.2/24")})
		},
		repair: func(w *sim.World) { w.IPHelper.SetAdapter("vEthernet (other)", false, nil) },
		reason: "PodCIDROverlaps", says: []string{`10.244.1.0/24 holds the address 10.244.1.2/24 of "vEthernet (other)"`, "fix: "}},
	{name: "an image for another build", engine: onWindows, pod: func(p *v1.Pod) { p.Spec.Containers[0].Image = "old" },
		reason: "Failed", says: []string{"image old is for Windows build 14393, this host has 20348", "hyperv"}},
	{name: "a credential spec that is no JSON", engine: onWindows, pod: func(p *v1.Pod) {
		spec := "CmsPlugins: x"
		p.Spec.SecurityContext = &v1.PodSecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{GMSACredentialSpec: &spec}}
	}, reason: "Failed", says: []string{"gmsaCredentialSpec is not a JSON object"}},
	{name: "an older API server", engine: onWindows, server: "v1.35.1", reason: "VersionSkew", says: []string{"the API server has version v1.35.1, and this program has v1.36.3", "never newer"}},
}

// wrongPod returns a correct pod, for a mistake to change.
func wrongPod() *v1.Pod {
	grace := int64(1)
	return &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-of-web", ResourceVersion: "1"},
		Spec: v1.PodSpec{NodeName: "win1", RestartPolicy: v1.RestartPolicyAlways, DNSPolicy: v1.DNSDefault, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{{Name: "app", Image: "app", ImagePullPolicy: v1.PullIfNotPresent}}}}
}

// badHost is the host on which mistakes are made.
type badHost struct {
	*testing.T
	*rig.Prefix
	api *api
}

// run starts kubelet.exe with a separate pipe, relayed to address.
func (h *badHost) run(number int, address string, env []string, flags ...string) (stop func()) {
	h.Helper()
	pipe := fmt.Sprintf("mistake-%d", number)
	end, err := h.Relay(h.Context(), `\\.\pipe\`+pipe, address)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(end)
	return startToStop(h.T, h.Prefix, env, "kubelet.exe", append([]string{"--hostname-override=win1", "--pod-infra-container-image=pause", "--resolv-conf=",
		"--api-servers=" + h.api.URL, `--root-dir=C:\kubelet`, "--address=127.0.0.1", "--port=0", "--healthz-port=0", "--node-status-update-frequency=1s", "--eviction-hard=", "--image-gc-high-threshold=100", "--windows-firewall=false",
		"--cluster-cidr=10.244.0.0/16", "--service-cidr=10.96.0.0/12", "--docker-endpoint=npipe:////./pipe/" + pipe}, flags...)...)
}

// told waits for an Event with that reason whose message is one line and contains words.
func (h *badHost) told(reason string, words []string) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 3*time.Minute)
	defer cancel()
	for {
		objects, changed := h.api.All()
		var all []string
		for _, object := range objects {
			if e, ok := object.(*v1.Event); ok {
				all = append(all, e.InvolvedObject.Kind+" "+e.Reason+": "+e.Message)
			}
		}
		for _, one := range all {
			if saysAll(one, append(words, " "+reason+": ")) {
				if strings.ContainsAny(one, "\r\n") {
					h.Errorf("the Event is more than a line: %q", one)
				}
				h.Logf("Event: %s", one)
				return
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			h.Fatalf("no Event %s with %q; there are:\n%s", reason, words, strings.Join(all, "\n"))
		}
	}
}

func saysAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// newBadAPI serves a Node with a pod range, and the pod.
func newBadAPI(t *testing.T, pod *v1.Pod) *api {
	objects := []runtime.Object{&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1", UID: "uid-of-win1"}, Spec: v1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}}}}
	if pod != nil {
		objects = append(objects, pod)
	}
	return newAPI(t, objects...)
}

// TestBadInputs: each mistake causes a one-line Event, and leaves nothing half-done in the engine, HNS, IP Helper or netsh.
func TestBadInputs(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute: make test-windows runs it")
	}
	t.Parallel()
	w, p := simulated(t, server2022)
	for i, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			var pod *v1.Pod
			var env []string
			if m.pod != nil {
				pod = wrongPod()
				m.pod(pod)
			}
			if m.pod != nil || m.server != "" { // the mistake is not in the network
				env = []string{"CONTAINER_NETWORK=nat"}
			}
			h := &badHost{T: t, Prefix: p, api: newBadAPI(t, pod)}
			h.api.Version = m.server
			engine := dockertest.New(m.engine)
			for name, version := range map[string]string{"pause": "10.0.20348.1", "app": "10.0.20348.1", "old": "10.0.14393.1"} {
				engine.AddImage(dockertest.Image{Names: []string{name}, OSVersion: version, Entrypoint: []string{name + ".exe"}})
			}
			had := engine.Dump()
			address := serveEngine(t, engine, m.pipe)
			if m.host != nil {
				m.host(w)
				defer m.repair(w)
			}
			before := w.String()
			stop := h.run(i, address, env, m.flags...)
			h.told(m.reason, m.says)
			stop()
			if after := w.String(); after != before {
				t.Errorf("Windows had\n%s\nand has\n%s", before, after)
			}
			left := strings.TrimPrefix(engine.Dump(), had)
			if pod == nil && left != "" || strings.Contains(left, "_app_web") {
				t.Errorf("the engine has beside its images:\n%s", left)
			}
			if unknown := w.Log.Unknown(); len(unknown) > 0 {
				t.Errorf("asked, not simulated: %v", unknown)
			}
		})
	}
}

// serveEngine serves an engine over HTTP, or otherwise in its place.
func serveEngine(t *testing.T, engine *dockertest.Engine, otherwise func(net.Conn)) (address string) {
	t.Helper()
	if otherwise == nil {
		server := httptest.NewServer(engine)
		t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
		return server.Listener.Addr().String()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			otherwise(conn)
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

// TestNoContainers: a Windows without the feature Containers, such as Wine, and one that is too old for it.
func TestNoContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-windows runs it")
	}
	t.Parallel()
	p := rig.Test(t, server2022)
	h := &badHost{T: t, Prefix: p, api: newBadAPI(t, nil)}
	engine := dockertest.New(onWindows)
	had := engine.Dump()
	stop := h.run(0, serveEngine(t, engine, nil), nil)
	h.told("KubeletNotReady", []string{"this Windows lacks the feature Containers", "Install-WindowsFeature Containers"})
	stop()
	if left := engine.Dump(); left != had {
		t.Errorf("the engine has\n%s", left)
	}

	for _, name := range []string{"CurrentBuild", "CurrentBuildNumber"} {
		if err := p.SetRegistry(t.Context(), `HKEY_LOCAL_MACHINE\Software\Microsoft\Windows NT\CurrentVersion`, name, "9600"); err != nil {
			t.Fatal(err)
		}
	}
	path := program(t, "kubelet.exe")
	for _, args := range [][]string{{"--api-servers=" + h.api.URL}, {"service", "install", "--api-servers=" + h.api.URL}} {
		printed, err := p.Finish(p.Command(t.Context(), path, args...))
		said := strings.TrimSpace(printed.Stderr)
		if err == nil || strings.Contains(said, "\n") || !strings.Contains(said, "build 9600, which does not support containers: want Windows Server 2016 (build 14393) or later") {
			t.Errorf("%q: %v; it says %q", args, err, said)
		}
	}
	if said, err := p.Finish(p.Command(t.Context(), path, "service", "status")); err == nil || !strings.Contains(said.String(), "the service is not installed") {
		t.Errorf("the refused service: %v, %s", err, said)
	}
}
