package plugins

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/apiserver"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// flannelHost is a host with flannel in its own network namespace: flannel reads the host's addresses.
type flannelHost struct {
	*testing.T
	*rig.Prefix
	world   *sim.World
	api     *apiserver.Server
	backend string
	exe     string
}

const (
	flannelConfig = `{"Network": "10.244.0.0/16", "Backend": {"Type": %q%s}}`
	subnetFile    = `C:\run\flannel\subnet.env`
)

// kubeconfigFor returns a kubeconfig for an API server without credentials.
func kubeconfigFor(url string) string {
	return "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + url + "'}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
}

func newFlannelHost(t *testing.T, build int, backend string) *flannelHost {
	t.Helper()
	n := newNamespace(t)
	p, err := rig.OpenIn(t.Context(), build, n.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &flannelHost{T: t, Prefix: p, world: sim.New(build, "eth0"), backend: backend}
	h.exe, _ = program(t, "flanneld.exe")
	h.world.Address = nodeAddress
	h.world.IPHelper.OnAddress = n.mirror
	l := n.listen()
	h.world.Serve(l)
	t.Cleanup(h.world.Close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("calls:\n%s", h.world.Log)
		}
	})
	if err := h.world.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := h.world.InstallPowerShell(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if h.api, err = apiserver.New(apiserver.JSON); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h.api)
	_ = server.Listener.Close()
	server.Listener = n.listen()
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	more := ""
	if backend == "vxlan" {
		more = `, "VNI": 4096, "Port": 4789`
	}
	for name, text := range map[string]string{`C:\k\config`: kubeconfigFor(server.URL), `C:\etc\kube-flannel\net-conf.json`: fmt.Sprintf(flannelConfig, backend, more)} {
		if err := p.Own(filepath.Dir(p.Path(name))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.Path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// start starts flanneld.exe; stop stops it.
func (h *flannelHost) start() (stop func()) {
	h.Helper()
	cmd := h.Command(h.Context(), h.exe, "--kube-subnet-mgr", `--kubeconfig-file=C:\k\config`, `--net-config-path=C:\etc\kube-flannel\net-conf.json`,
		"--subnet-file="+subnetFile, "--iface="+nodeAddress.String(), "--ip-masq")
	cmd.Env = append(cmd.Env, "NODE_NAME=win1")
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	h.Cleanup(func() {
		stop()
		if h.Failed() {
			h.Logf("flanneld printed:\n%s", &printed)
		}
	})
	return stop
}

// flannelNode returns another node that runs flannel.
func (h *flannelHost) flannelNode(name string, number int, address string) *v1.Node {
	cidr := fmt.Sprintf("10.244.%d.0/24", number)
	annotations := map[string]string{"kube-subnet-manager": "true", "backend-type": h.backend, "public-ip": address, "backend-data": "null"}
	if h.backend == "vxlan" {
		annotations["backend-data"] = fmt.Sprintf(`{"VNI":4096,"VtepMAC":"5e:11:22:33:44:%02x"}`, number)
	}
	node := &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: v1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}}}
	for key, value := range annotations {
		node.Annotations["flannel.alpha.coreos.com/"+key] = value
	}
	return node
}

func (h *flannelHost) set(node *v1.Node) {
	h.Helper()
	if err := h.api.Set(node); err != nil {
		h.Fatal(err)
	}
}

// state returns what flannel has created: on its Node, in HNS, with PowerShell and on disk.
func (h *flannelHost) state() string {
	var b strings.Builder
	if node, ok := h.api.Get("/api/v1/nodes/win1").(*v1.Node); ok {
		for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
			fmt.Fprintf(&b, "%s=%s\n", key, node.Annotations[key])
		}
	}
	b.WriteString(h.world.HNS.String() + h.world.PowerShell.String())
	file, _ := os.ReadFile(h.Path(subnetFile))
	b.Write(file)
	return b.String()
}

// TestFlannel runs flanneld.exe next to Linux nodes, and compares what it requests from a Windows host. The states are equal on each
// build.
func TestFlannel(t *testing.T) {
	for _, backend := range []string{"host-gw", "vxlan"} {
		for _, build := range rig.Wanted(17763, 20348, 26100) {
			t.Run(fmt.Sprintf("%s/%d", backend, build), func(t *testing.T) { playFlannel(t, newFlannelHost(t, build, backend)) })
		}
	}
}

func playFlannel(t *testing.T, h *flannelHost) {
	// On a real cluster the controller manager annotates every Node; flannel panics if there are no annotations
	// (kube.go AcquireLease).
	h.set(&v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "win1", Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"}},
		Spec: v1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}}})
	h.set(h.flannelNode("lin1", 2, "10.1.0.11"))
	var stop func()
	path := filepath.Join("testdata", "flannel-"+h.backend+".state")
	golden, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	var states strings.Builder
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"flanneld starts", func() { stop = h.start() }},
		{"a node joins", func() { h.set(h.flannelNode("lin2", 3, "10.1.0.13")) }},
		{"a node has another address", func() { h.set(h.flannelNode("lin1", 2, "10.1.0.14")) }},
		{"a node leaves", func() {
			if err := h.api.Delete("/api/v1/nodes/lin2"); err != nil {
				t.Fatal(err)
			}
		}},
		{"flanneld starts again", func() { stop(); h.world.Log.Reset(); stop = h.start() }},
	} {
		step.do()
		header := "== " + step.name + "\n"
		if *update {
			h.settle()
			if !strings.Contains(h.state(), "FLANNEL_SUBNET") {
				h.Fatalf("%s: flanneld is not ready:\n%s", step.name, h.state())
			}
			states.WriteString(header + h.state())
			continue
		}
		_, want, found := strings.Cut(string(golden), header)
		want, _, _ = strings.Cut(want, "== ")
		h.await(step.name, want, found)
	}
	if h.settle(); len(h.world.Log.Calls("HcnCreateNetwork", "HcnDeleteNetwork", "HcnCreateEndpoint", "HcnDeleteEndpoint")) > 0 {
		t.Error("flanneld makes its network again when it starts again")
	}
	if unknown := h.world.Log.Unknown(); len(unknown) > 0 {
		t.Errorf("the simulators were asked for what they do not know: %v", unknown)
	}
	if *update {
		if err := os.WriteFile(path, []byte(states.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// await waits for the wanted state.
func (h *flannelHost) await(name, want string, found bool) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 3*time.Minute)
	defer cancel()
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for h.state() != want || !found {
		select {
		case <-retry.C:
		case <-ctx.Done():
			h.Fatalf("%s: got\n%s\nwant\n%s", name, h.state(), want)
		}
	}
}

// settle waits until nothing has changed for a while.
func (h *flannelHost) settle() {
	h.Helper()
	for before := "-"; before != h.state(); {
		before = h.state()
		select {
		case <-time.After(6 * time.Second):
		case <-h.Context().Done():
			h.Fatal(h.Context().Err())
		}
	}
}
