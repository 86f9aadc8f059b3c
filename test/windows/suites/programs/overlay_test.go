package programs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// ofKubelet is the network that pkg/hns creates for the kubelet.
const ofKubelet = `{"Name":"winkube.4096","Type":"Overlay","Flags":8,"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.1.0/24",` +
	`"Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],"Routes":[{"NextHop":"10.244.1.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`

// otherNode returns a node that runs flannel, with that number in its pod range and that public address.
func otherNode(name string, number int, public string) *v1.Node {
	cidr := fmt.Sprintf("10.244.%d.0/24", number)
	return &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, Spec: v1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan", "flannel.alpha.coreos.com/public-ip": public,
			"flannel.alpha.coreos.com/backend-data": fmt.Sprintf(`{"VNI":4096,"VtepMAC":"5e:11:22:33:44:%02x"}`, number)}}}
}

// TestProxyOverlay runs proxy.exe with the one flag that an overlay needs. The routes to other nodes appear with the network and follow the nodes;
// so do load balancers. They are restored after HNS loses everything; --cleanup removes them.
func TestProxyOverlay(t *testing.T) {
	for _, build := range []int{17763, 26100} {
		t.Run(fmt.Sprint(build), func(t *testing.T) {
			t.Parallel()
			playOverlay(t, build)
		})
	}
}

func playOverlay(t *testing.T, build int) {
	w, p := simulated(t, build)
	ip, mac := rig.HostAddress(t)
	nodes := []runtime.Object{otherNode("win1", 1, ip), otherNode("flannel1", 2, "192.168.99.2")}
	api := newAPI(t, slices.Concat(nodes, served("web", "10.96.0.10", 80, "10.244.2.7:8080"), served("kubernetes", "10.96.0.1", 443, "192.168.99.2:6443"),
		served("later", "10.96.0.30", 80, "10.244.3.7:8080"))...)
	api.Silent = false
	stop := startToStop(t, p, nil, "proxy.exe", "--v=3", "--hostname-override=win1", "--master="+api.URL, "--bind-address="+ip, "--network-mode=overlay",
		"--iptables-sync-period=2s", "--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")
	makeNetwork := func() {
		result, handle, _ := w.HNS.Call("HcnCreateNetwork", []string{"00000000-0000-0000-0000-000000000000", ofKubelet})
		if result != 0 {
			t.Fatalf("HRESULT %#x", uint32(result))
		}
		w.HNS.Call("HcnCloseNetwork", []string{handle})
	}
	var states strings.Builder
	path := filepath.Join("testdata", "overlay-proxy.state")
	golden, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	state := func() string {
		return strings.NewReplacer(ip, "NODE_IP", mac, "NODE_MAC", " on "+rig.HostAdapter(t)+" ", " on Ethernet ").Replace(w.HNS.String())
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"the kubelet makes the network", makeNetwork},
		{"a node joins", func() { api.set(t, otherNode("flannel2", 3, "192.168.99.3")) }},
		{"a node has another address", func() { api.set(t, otherNode("flannel1", 2, "192.168.99.22")) }},
		{"HNS crashes and has lost the network, the kubelet makes it again", func() { w.HNS.Crash(); w.HNS.Start(); makeNetwork() }},
		{"a node leaves", func() { api.remove(t, "/api/v1/nodes/flannel2") }},
	} {
		step.do()
		header := "== " + step.name + "\n"
		if *update {
			settle(t, w)
			states.WriteString(header + state())
			continue
		}
		_, want, found := strings.Cut(string(golden), header)
		want, _, _ = strings.Cut(want, "== ")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		if err := w.Log.Wait(ctx, func() bool { return state() == want }); err != nil || !found {
			t.Errorf("%s: %v; HNS has\n%s\nwant\n%s", step.name, err, state(), want)
		}
		cancel()
	}
	stop()
	exe := program(t, "proxy.exe")
	if out, err := p.Run(t.Context(), exe, "--cleanup", "--hostname-override=win1", "--network-mode=overlay", "--bind-address="+ip); err != nil {
		t.Errorf("--cleanup: %v: %s", err, out)
	}
	for _, trace := range []string{"RemoteSubnetRoute", "load balancer", "endpoint"} {
		if strings.Contains(w.HNS.String(), trace) {
			t.Errorf("--cleanup leaves:\n%s", w.HNS)
		}
	}
	if unknown := w.Log.Unknown(); len(unknown) > 0 {
		t.Errorf("asked, not simulated: %v", unknown)
	}
	if *update {
		if err := os.WriteFile(path, []byte(states.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// settle waits until nothing has changed for a while: with -update there is no state to wait for.
func settle(t *testing.T, w *sim.World) {
	t.Helper()
	for before := ""; before != w.HNS.String(); {
		before = w.HNS.String()
		select {
		case <-time.After(10 * time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}
