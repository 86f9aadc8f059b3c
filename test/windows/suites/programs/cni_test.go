package programs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/windows/cniplugins"
)

// TestNodeJoinWithPlugins: `kubelet.exe node join` in mode cni waits for the configuration of win-bridge.exe, which its administrator writes when the Node
// has its range; a pod gets the plugin's address and the proxy has its Service's; and `node leave` takes all of it back while the pod runs. The network is
// flannel's.
func TestNodeJoinWithPlugins(t *testing.T) {
	if testing.Short() {
		t.Skip("builds other projects' plugins; make test-windows runs it")
	}
	t.Parallel()
	for _, name := range []string{"win-bridge.exe", "host-local.exe"} { // before a node waits for them
		if _, _, err := cniplugins.Program(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	world, p := simulated(t, server2022)
	w := &walk{T: t, Prefix: p, cluster: layOut(t, p, world)}
	defer w.stop()
	world.Compute = func(id string) (string, bool) {
		return fmt.Sprintf(`{"Id": %q, "SystemType": "Container", "Owner": "docker"}`, id), true
	}
	function, network := cniplugins.Network("win-bridge", cniplugins.Documented)
	if result, _, record := world.HNS.Call(function, network); result != 0 {
		t.Fatalf("%#x %s", uint32(result), record)
	}
	before := world.String()

	args := w.toCluster([]string{"node", "join", "10.0.0.1:6443", "--token=abcdef.0123456789abcdef", "--discovery-token-ca-cert-hash=sha256:HASH"})
	args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--network-mode=upstream" })
	args = append(slices.Insert(args, slices.Index(args, "--")+1, append([]string{"--pod-infra-container-image=pause:20348", "--eviction-hard="}, cniplugins.Flags...)...), "--network-mode=cni")
	joined := make(chan string, 1)
	go func() {
		said, err := w.Finish(w.Command(t.Context(), `C:\new\kubelet.exe`, args...)) // its doctor finds what Wine lacks
		joined <- fmt.Sprintf("%s\n%v", said, err)
	}()
	w.until("the Node waits for the configuration", func() bool { return w.readiness() == "CNINotReady" })
	if err := cniplugins.Install(t.Context(), p, "win-bridge", cniplugins.Documented); err != nil {
		t.Fatal(err)
	}
	if said := <-joined; !strings.Contains(said, "Node win1: Ready") {
		t.Fatalf("node join printed\n%s", said)
	}
	grace := int64(1)
	pod := &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-of-web"}, Spec: v1.PodSpec{NodeName: "win1",
		TerminationGracePeriodSeconds: &grace, Containers: []v1.Container{{Name: "web", Image: "pause:20348", ImagePullPolicy: v1.PullNever}}}}
	if err := w.cluster.Set(append(served("web", "10.96.0.77", 80, cniplugins.Documented.First()+":8080"), pod)...); err != nil {
		t.Fatal(err)
	}
	defer w.events()
	w.until("the pod with the plugin's address, its Service's address on the host", func() bool {
		pod, _ := w.cluster.Get("/api/v1/namespaces/default/pods/web").(*v1.Pod)
		state := world.String()
		return pod != nil && pod.Status.Phase == v1.PodRunning && pod.Status.PodIP == cniplugins.Documented.First() &&
			strings.Contains(state, "endpoint local "+pod.Status.PodIP) && strings.Contains(state, "address 10.96.0.77/32")
	})
	if said := w.run([]string{`C:\new\kubelet.exe`, "node", "leave"}); !strings.Contains(said, "networks: removed 2 containers from the network of CNI plugins") {
		t.Errorf("node leave printed\n%s", said)
	}
	if after := world.String(); after != before {
		t.Errorf("node leave leaves\n%s\nthere was\n%s", after, before)
	}
	leases, err := filepath.Glob(filepath.Join(p.Path(`C:\var\lib\cni\networks`), "*", "10.*"))
	if err != nil || len(leases) > 0 {
		t.Errorf("leases %q, %v are left", leases, err)
	}
	for key, value := range w.registered() {
		if value != "" {
			t.Errorf("%s = %s is left", key, value)
		}
	}
}

// events logs, after a failure, what the kubelet and the proxy report.
func (w *walk) events() {
	if !w.Failed() {
		return
	}
	objects, err := w.cluster.All()
	if err != nil {
		w.Error(err)
	}
	for _, object := range objects {
		if e, ok := object.(*v1.Event); ok {
			w.Logf("Event: %s %s", e.Reason, e.Message)
		}
	}
}

// readiness is why the Node is not Ready, or "".
func (w *walk) readiness() string {
	node, _ := w.cluster.Get("/api/v1/nodes/win1").(*v1.Node)
	if node == nil {
		return ""
	}
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeNetworkUnavailable {
			return c.Reason
		}
	}
	return ""
}

// until waits for what the programs do.
func (w *walk) until(what string, ok func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 4*time.Minute)
	defer cancel()
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for !ok() {
		select {
		case <-retry.C:
		case <-ctx.Done():
			w.Fatalf("%s: not reached", what)
		}
	}
}
