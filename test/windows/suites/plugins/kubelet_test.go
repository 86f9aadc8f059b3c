package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/test/apiserver"
	"github.com/winkube/winkube/test/windows/cniplugins"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hns"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// member is a host with kubelet.exe, a Windows engine whose containers do not really run, and an API server in memory.
type member struct {
	*testing.T
	*rig.Prefix
	world  *sim.World
	api    *apiserver.Server
	url    string
	engine *httptest.Server
}

func newMember(t *testing.T, answers hns.Options, plugin string) *member {
	t.Helper()
	w, p := simulatedWith(t.Context(), t, answers)
	m, build := &member{T: t, Prefix: p, world: w}, answers.Build
	fake := dockertest.New(dockertest.Options{OS: "windows", Build: build})
	version := fmt.Sprintf("10.0.%d.1", build)
	for _, name := range []string{"pause", "app"} {
		fake.AddImage(dockertest.Image{Names: []string{name}, OSVersion: version, Entrypoint: []string{name + ".exe"}})
	}
	m.engine = httptest.NewServer(fake)
	t.Cleanup(func() { m.engine.CloseClientConnections(); m.engine.Close() })
	w.Address, w.Compute = nodeAddress, m.compute
	function, args := cniplugins.Network(plugin, cniplugins.Documented)
	if result, _, record := w.HNS.Call(function, args); result != 0 {
		t.Fatalf("%#x %s", uint32(result), record)
	}
	if result, _, record := w.HNS.Call("HNSCall", []string{http.MethodGet, "/networks/", ""}); result != 0 { // as flannel, which waits until HNS has completed it
		t.Fatalf("%#x %s", uint32(result), record)
	}
	err := cniplugins.Install(t.Context(), p, plugin, cniplugins.Documented)
	if err != nil {
		t.Fatal(err)
	}
	if m.api, err = apiserver.New(apiserver.JSON); err != nil {
		t.Fatal(err)
	}
	m.url = apiserver.Start(t, m.api)
	m.set(&v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "win1", UID: "uid-of-win1"},
		Spec: v1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}}})
	return m
}

func (m *member) set(objects ...runtime.Object) {
	m.Helper()
	if err := m.api.Set(objects...); err != nil {
		m.Fatal(err)
	}
}

// ask sends a request to the engine.
func (m *member) ask(method, path string, out any) error {
	request, err := http.NewRequestWithContext(m.Context(), method, m.engine.URL+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(out)
}

// containers returns the engine's containers, running or all, by ID.
func (m *member) containers(query string) map[string]string {
	var list []struct {
		ID    string `json:"Id"`
		Names []string
	}
	if err := m.ask(http.MethodGet, "/containers/json"+query, &list); err != nil {
		return nil
	}
	names := map[string]string{}
	for _, one := range list {
		kind := strings.Split(strings.TrimPrefix(one.Names[0], "/"), "_")[1]
		names[one.ID] = strings.ToLower(kind)
	}
	return names
}

// compute simulates HCS with the running containers.
func (m *member) compute(id string) (properties string, found bool) {
	_, found = m.containers("")[id]
	return fmt.Sprintf(`{"Id": %q, "SystemType": "Container", "Owner": "docker"}`, id), found
}

// state returns HNS's state, with container names in place of IDs.
func (m *member) state() string {
	text := m.world.HNS.String()
	for id, name := range m.containers("?all=1") {
		text = strings.ReplaceAll(text, id, name)
	}
	return text
}

// ourKubelet is kubelet.exe as `make` builds it.
func ourKubelet(t *testing.T) string {
	t.Helper()
	exe, err := filepath.Abs("../../../../_output/bin/windows/amd64/kubelet.exe")
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// start starts kubelet.exe; stop kills it.
func (m *member) start(number int) (stop func()) {
	m.Helper()
	pipe := fmt.Sprintf("engine-%d", number)
	end, err := m.Relay(m.Context(), `\\.\pipe\`+pipe, m.engine.Listener.Addr().String())
	if err != nil {
		m.Fatal(err)
	}
	cmd := m.Command(m.Context(), ourKubelet(m.T), append([]string{"--hostname-override=win1", "--pod-infra-container-image=pause", "--resolv-conf=", "--api-servers=" + m.url,
		`--root-dir=C:\kubelet`, "--address=127.0.0.1", "--port=0", "--healthz-port=0", "--node-status-update-frequency=1s", "--eviction-hard=", "--image-gc-high-threshold=100",
		"--windows-firewall=false", "--cluster-dns=10.96.0.10", "--cluster-domain=cluster.local", "--docker-endpoint=npipe:////./pipe/" + pipe}, cniplugins.Flags...)...)
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-ended
		end()
	}
	m.Cleanup(func() {
		stop()
		if m.Failed() {
			m.Logf("kubelet.exe printed:\n%s", &printed)
		}
	})
	return stop
}

// until waits until the engine, HNS and the API server satisfy ok.
func (m *member) until(what string, ok func() bool) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 4*time.Minute)
	defer cancel()
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for !ok() {
		select {
		case <-retry.C:
		case <-ctx.Done():
			objects, _ := m.api.All()
			for _, object := range objects {
				if e, ok := object.(*v1.Event); ok {
					m.Logf("Event: %s %s", e.Reason, e.Message)
				}
			}
			m.Fatalf("%s: not reached; HNS has\n%s", what, m.state())
		}
	}
}

// webPod is a pod of two containers, one of which has a hostPort.
func webPod() *v1.Pod {
	grace := int64(1)
	return &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-of-web"},
		Spec: v1.PodSpec{NodeName: "win1", RestartPolicy: v1.RestartPolicyAlways, DNSPolicy: v1.DNSClusterFirst, TerminationGracePeriodSeconds: &grace, Containers: []v1.Container{
			{Name: "app", Image: "app", ImagePullPolicy: v1.PullIfNotPresent, Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: 8081, Protocol: v1.ProtocolTCP}}},
			{Name: "helper", Image: "app", ImagePullPolicy: v1.PullIfNotPresent}}}}
}

// attached reports whether both of webPod's containers have the pod's endpoint. A container runs, and its pod has phase Running, before it is attached.
func (m *member) attached() bool {
	state := m.state()
	return strings.Contains(state, "app, helper") || strings.Contains(state, "helper, app")
}

// TestKubelet runs kubelet.exe with the documented flags and configuration, other projects' plugins, and a pod of two
// containers.
func TestKubelet(t *testing.T) {
	for _, plugin := range []string{"win-bridge", "win-overlay"} {
		for _, build := range rig.Wanted(17763, 20348, 26100) {
			t.Run(fmt.Sprintf("%s/%d", plugin, build), func(t *testing.T) { playKubelet(t, hns.Options{Build: build}, plugin) })
		}
	}
}

// TestKubeletContrary is TestKubelet where HNS drops what it does not know, in lists of changing order, and completes networks later.
func TestKubeletContrary(t *testing.T) {
	for _, plugin := range []string{"win-bridge", "win-overlay"} {
		t.Run(plugin, func(t *testing.T) { playKubelet(t, hns.Options{Build: 20348, DropsNewer: true, Contrary: 4}, plugin) })
	}
}

func playKubelet(t *testing.T, answers hns.Options, plugin string) {
	m := newMember(t, answers, plugin)
	stop := m.start(1)
	m.set(webPod())
	var pod *v1.Pod
	m.until("the pod runs", func() bool {
		pod, _ = m.api.Get("/api/v1/namespaces/default/pods/web").(*v1.Pod)
		return pod != nil && pod.Status.Phase == v1.PodRunning && pod.Status.PodIP == cniplugins.Documented.First() && m.attached()
	})
	golden(t, filepath.Join("testdata", "kubelet-"+plugin+".state"), strings.ReplaceAll(m.state(), "helper, app", "app, helper"))

	stop()
	m.world.Log.Reset()
	state, then := m.state(), len(m.api.Calls())
	stop = m.start(2)
	m.rounds(then)
	if changes := changing(m.world.Log.Calls()); len(changes) > 0 || m.state() != state {
		t.Errorf("a second kubelet changes the network of running pods: %v\nfrom\n%s\nto\n%s", changes, state, m.state())
	}
	stop()
	for id := range m.containers("?all=1") { // like docker rm -f
		if err := m.ask(http.MethodDelete, "/containers/"+id+"?force=1", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.api.Delete("/api/v1/namespaces/default/pods/web"); err != nil {
		t.Fatal(err)
	}
	stop = m.start(3)
	m.until("the endpoint of removed containers is removed", func() bool { return !strings.Contains(m.state(), "endpoint") })
	next := webPod()
	next.UID = "uid-of-the-next"
	m.set(next)
	m.until("a pod takes the place of the removed one", func() bool { return strings.Contains(m.state(), "helper") && strings.Contains(m.state(), "app") })
	if err := m.api.Delete("/api/v1/namespaces/default/pods/web"); err != nil {
		t.Fatal(err)
	}
	m.until("the endpoint of a removed pod is removed", func() bool { return !strings.Contains(m.state(), "endpoint") && len(m.containers("")) == 0 })
	stop()
	leases, err := filepath.Glob(filepath.Join(m.Path(`C:\var\lib\cni\networks`), "*", "10.*"))
	if err != nil || len(leases) > 0 {
		t.Errorf("leases %q, %v are left", leases, err)
	}
}

// changing returns the calls that change something in HNS, or a container's network in HCS.
func changing(list []calls.Call) (out []string) {
	for _, c := range list {
		read := c.Function == "HNSCall" && len(c.Args) > 0 && c.Args[0] == http.MethodGet
		for _, prefix := range []string{"HcnEnumerate", "HcnOpen", "HcnQuery", "HcnClose", "HcnRegister", "HcnUnregister"} {
			read = read || strings.HasPrefix(c.Function, prefix)
		}
		if c.Service == "hns" && !read || c.Function == "HcsModifyComputeSystem" {
			out = append(out, c.String())
		}
	}
	return out
}

// rounds waits until the kubelet has renewed its lease twice after call number then: by that time it has compared the pods with
// the engine.
func (m *member) rounds(then int) {
	m.Helper()
	m.until("the kubelet works", func() bool {
		n := 0
		for _, call := range m.api.Calls()[then:] {
			if strings.HasPrefix(call, "PUT ") && strings.Contains(call, "/leases/win1") {
				n++
			}
		}
		return n >= 2
	})
}
