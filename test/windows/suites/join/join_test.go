package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
)

// TestJoin covers the life of a node for each Windows Server, in parallel on the available hosts.
func TestJoin(t *testing.T) {
	for _, build := range servers {
		onServer(t, build, func(m *member) {
			m.setVariables()
			m.boot()
			m.lastServiceAddress()
			m.join()
			m.samples()
			judge := m.hostDoctor()
			m.files()
			m.features()
			m.identities()
			judge()
			m.sizes()
			m.metrics()
			m.streams()
			m.services()
			m.state("state of HNS, IP Helper, netsh", relayed)
			m.doctor()
			m.replaced()
			m.backEnds()
			m.killed()
			m.engineRestarts()
			m.hnsRestarts()
			m.reboots()
			m.asServices()
			m.upgrades()
			m.leaves()
		})
	}
}

// did sets a cell of the table.
func (m *member) did(check, cell string) {
	results.set(check, m.Build, cell)
	fmt.Fprintf(m.Output(), "%5.1f s  %s: %s\n", time.Since(m.begin).Seconds(), check, cell) // no message: hack/failures leaves it out
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// join starts the agents. They register the Node, and create its network once it has its pod range.
func (m *member) join() {
	ctx := m.Context()
	m.startAgents()
	for _, one := range []struct {
		name, port string
		began      time.Time
	}{{"kubelet.exe", "10248", m.kubelet.Begin}, {"proxy.exe", "10256", m.proxy.Begin}} {
		url := "http://127.0.0.1:" + one.port + "/healthz"
		m.served(3*time.Minute, url, func(ctx context.Context) error { return m.get(ctx, url, "") })
		m.did(one.name+": start to /healthz", seconds(time.Since(one.began)))
	}
	took := time.Now()
	m.podCIDR = m.rangeOfNode()
	m.did("then to a registered Node", seconds(time.Since(took)))
	m.until(3*time.Minute, "Node Ready", func(context.Context) error { return m.ready(time.Time{}) })
	m.did("Node Ready", "ok")
	node, err := client.CoreV1().Nodes().Get(ctx, m.host.Name, metav1.GetOptions{})
	if err != nil {
		m.Fatal(err)
	}
	want := map[string]string{v1.LabelOSStable: "windows", "beta.kubernetes.io/os": "windows", v1.LabelArchStable: "amd64", v1.LabelHostname: m.host.Name}
	for key, value := range want {
		if node.Labels[key] != value {
			m.Errorf("label %s is %q, want %q", key, node.Labels[key], value)
		}
	}
	info := node.Status.NodeInfo
	if info.OperatingSystem != "windows" || !strings.HasPrefix(info.KernelVersion, fmt.Sprintf("10.0.%d.", m.Build)) || !strings.HasPrefix(info.OSImage, "Windows Server 20") ||
		!strings.HasPrefix(info.ContainerRuntimeVersion, "docker://") {
		m.Errorf("nodeInfo is %+v", info)
	}
	m.did("nodeInfo, labels", info.KernelVersion)
	m.did("kubelet.exe: resident memory", memory(m.kubelet))
	m.did("proxy.exe: resident memory", memory(m.proxy))
}

// ready returns nil if the Node is Ready and its kubelet has reported so after since.
func (m *member) ready(since time.Time) error {
	lease, err := leases.Leases(v1.NamespaceNodeLease).Get(m.host.Name)
	if err != nil {
		return err
	}
	if lease.Spec.RenewTime.Time.Before(since) {
		return fmt.Errorf("the lease is of %s", lease.Spec.RenewTime)
	}
	node, err := watched.Nodes().Lister().Get(m.host.Name)
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			if condition.Status == v1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
		}
	}
	return errors.New("the Node has no condition Ready")
}

// sampleFiles are the files of build/samples that also run on Windows.
var sampleFiles = []string{"configmap.yaml", "daemonset.yaml", "deployment.yaml", "emptydir.yaml", "hostpath.yaml", "iis.yaml", "secret.yaml"}

var selector = regexp.MustCompile(`(?m)^( *)nodeSelector:$`)

// forWindows adapts a sample to a Windows node: the selectors, a host path, and node ports that neither the samples on Linux nor those on
// other Windows Servers use.
func forWindows(text, node string, build int) string {
	ports := strconv.Itoa(311 + slices.Index(rig.Builds, build))
	text = strings.NewReplacer(
		"os: linux", "os: windows", "path: /usr/lib", `path: C:\host`, "nodePort: 300", "nodePort: "+ports,
		"    spec:\n      containers:\n      - name: hello", "    spec:\n      nodeSelector:\n        kubernetes.io/os: windows\n      containers:\n      - name: hello",
	).Replace(text)
	return selector.ReplaceAllString(text, "$0\n$1  kubernetes.io/hostname: "+node)
}

// samples runs the seeds' samples and checks them.
func (m *member) samples() {
	ctx := m.Context()
	dir := m.TempDir()
	for _, name := range sampleFiles {
		data, err := os.ReadFile(filepath.Join(cluster.Root, "build/samples", name))
		if err != nil {
			m.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(forWindows(string(data), m.host.Name, m.Build)), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	if err := m.Own(m.Path(`C:\host`)); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(m.Path(`C:\host\readme.txt`), []byte("a file of the host\n"), 0o644); err != nil {
		m.Fatal(err)
	}
	m.namespace(fmt.Sprintf("windows-%d", m.Build))
	if _, err := cluster.Kubectl(ctx, "apply", "-n", m.space, "-f", dir); err != nil {
		m.Fatal(err)
	}
	took := m.until(5*time.Minute, "9 pods Ready", func(context.Context) error { return m.podsReady(9, 0) })
	m.did("samples: 9 pods Ready", seconds(took))
	for _, look := range []struct{ pod, want string }{
		{"my-secret-pod cat /etc/secret/username", "admin"},
		{"my-secret-pod env", "PASSWORD=1f2d1e2e67df"},
		{"my-configmap-pod cat /etc/config/example.property.2", "world"},
		{"my-configmap-pod env", "EXAMPLE_PROPERTY_1=hello"},
		{"my-hostpath-volume-pod cat /etc/foo/readme.txt", "a file of the host"},
		{"my-empty-dir-pod cat /cache/file", "kept"},
	} {
		if strings.Contains(look.pod, "/cache/") {
			m.inPod("my-empty-dir-pod write /cache/file kept")
		}
		if got := m.inPod(look.pod); !strings.Contains(got, look.want) {
			m.Errorf("%s: %q, want %q", look.pod, got, look.want)
		}
	}
	m.did("secret, configMap, hostPath, emptyDir", "ok")
}

// hostLabel is the host whose test created a namespace.
const hostLabel = "winkube.test/host"

// namespace creates a namespace with that prefix and deletes it when the test ends. The suffix avoids an earlier test's namespace
// that is still terminating.
func (m *member) namespace(name string) {
	m.Helper()
	space := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-", Labels: map[string]string{hostLabel: m.host.Name}}}
	space, err := client.CoreV1().Namespaces().Create(m.Context(), space, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	m.space = space.Name
	m.Cleanup(func() {
		ctx := context.Background()
		if m.Failed() { // the kubelet that would remove its pods is gone, and its node ports are needed again
			_, _ = cluster.Kubectl(ctx, "delete", "pods,services", "--all", "-n", m.space, "--force", "--grace-period=0", "--ignore-not-found")
		}
		_, _ = cluster.Kubectl(ctx, "delete", "namespace", m.space, "--ignore-not-found", "--wait=false")
	})
	m.until(time.Minute, "service account", func(context.Context) error {
		_, err := watched.ServiceAccounts().Lister().ServiceAccounts(m.space).Get("default")
		return err
	})
}

// inPod runs the sample's command in a pod with exec. A kubelet that has just started may not know the pod yet.
func (m *member) inPod(line string) (out string) {
	m.Helper()
	words := strings.Fields(line)
	m.served(time.Minute, "exec in "+line, func(ctx context.Context) (err error) {
		out, err = cluster.Kubectl(ctx, append([]string{"exec", "-n", m.space, words[0], "--", "/sample"}, words[1:]...)...)
		return err
	})
	return out
}

// podsReady returns nil if want pods of the test are Ready and each of their containers has restarted at least restarts times.
func (m *member) podsReady(want int, restarts int32) error {
	pods, err := watched.Pods().Lister().Pods(m.space).List(labels.Everything())
	if err != nil {
		return err
	}
	ready := 0
	var waits []string
	for _, pod := range pods {
		ok := slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
		for _, status := range pod.Status.ContainerStatuses {
			ok = ok && status.RestartCount >= restarts && status.State.Running != nil
		}
		if ok && pod.Spec.NodeName == m.host.Name {
			ready++
		} else {
			waits = append(waits, fmt.Sprintf("%s on %q: %s %s %v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message, pod.Status.ContainerStatuses))
		}
	}
	if ready != want {
		return fmt.Errorf("%d of %d pods are Ready with %d restarts: %s", ready, want, restarts, strings.Join(waits, "; "))
	}
	return nil
}

// streams tests logs, exec with input, and port-forward.
func (m *member) streams() {
	ctx := m.Context()
	out, err := cluster.Kubectl(ctx, "logs", "-n", m.space, "iis")
	if err != nil || !strings.Contains(out, "serving on :80") {
		m.Errorf("logs: %q %v", out, err)
	}
	m.did("logs", "ok")
	shell := exec.CommandContext(ctx, cluster.KubectlPath(), "--kubeconfig="+cluster.Kubeconfig(), "exec", "-i", "-n", m.space, "iis", "--", "/sample", "shell")
	shell.Stdin = strings.NewReader("echoargs from standard input\n")
	if said, err := output.Of(shell); err != nil || !strings.Contains(said.Stdout, "from standard input") {
		m.Errorf("exec -i: %q %v", said, err)
	}
	m.did("exec, exec -i", "ok")
	m.forwards()
}

func (m *member) forwards() {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 2*time.Minute)
	defer cancel()
	forward := exec.CommandContext(ctx, cluster.KubectlPath(), "--kubeconfig="+cluster.Kubeconfig(), "port-forward", "-n", m.space, "pod/iis", ":80")
	out, err := forward.StdoutPipe()
	if err != nil {
		m.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		m.Fatal(err)
	}
	defer func() { cancel(); _ = forward.Wait() }()
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil {
		m.Fatal(err)
	}
	found := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(line[:n]))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+found+"/hostname", nil)
	if err != nil {
		m.Fatalf("port-forward printed %q: %v", line[:n], err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		m.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || strings.TrimSpace(string(text)) != "iis" {
		m.Errorf("port-forward answers %q %v", text, err)
	}
	m.did("port-forward", "ok")
}

// services requests the service hello on its cluster address and the service iis on its node port, both from the node.
func (m *member) services() {
	ctx := m.Context()
	for _, name := range []string{"hello", "iis"} {
		service, err := client.CoreV1().Services(m.space).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			m.Fatal(err)
		}
		for _, where := range []string{service.Spec.ClusterIP, m.host.Addr.String() + ":" + strconv.Itoa(int(service.Spec.Ports[0].NodePort))} {
			m.served(time.Minute, "service "+name+" at "+where, func(ctx context.Context) error { return m.get(ctx, "http://"+where+"/hostname", name) })
		}
	}
	m.did("services on the node: ClusterIP, node port", "ok")
}

// get requires a page that names the pod.
func (m *member) get(ctx context.Context, url, want string) error {
	out, err := m.host.Exec(ctx, filepath.Join(cluster.Tools, "sample"), "get", url)
	if err == nil && !strings.HasPrefix(out, want) {
		err = fmt.Errorf("%s answers %q", url, out)
	}
	return err
}

// containers returns the IDs of the running containers of this test's pods.
func (m *member) containers() []string {
	m.Helper()
	list, err := m.host.Engine().Containers(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	var ids []string
	for _, one := range list {
		if one.State == "running" {
			ids = append(ids, one.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// replaced stops the kubelet normally and starts it again, as an upgrade does: its pods keep running.
func (m *member) replaced() {
	before := m.containers()
	m.kubelet.Stop()
	begin := time.Now()
	m.startKubelet()
	m.until(3*time.Minute, "Node Ready after an orderly restart", func(context.Context) error { return m.ready(begin) })
	if after := m.containers(); !slices.Equal(before, after) {
		m.Errorf("containers before: %v\nafter: %v", before, after)
	}
	m.did("kubelet replaced in order: Node Ready again", seconds(time.Since(begin)))
}

// killed kills both agents. Containers keep running, and the next agents find them.
func (m *member) killed() {
	before := m.containers()
	m.crash()
	begin := time.Now()
	m.startAgents()
	m.until(3*time.Minute, "Node Ready after kill -9", func(context.Context) error { return m.ready(begin) })
	m.did("kill -9 of both: Node Ready again", seconds(time.Since(begin)))
	m.inPod("my-empty-dir-pod cat /cache/file")
	m.services()
	if after := m.containers(); !slices.Equal(before, after) {
		m.Errorf("containers before: %v\nafter: %v", before, after)
	}
	m.did("containers kept over kill -9", strconv.Itoa(len(before)))
	m.state("state after kill -9", relayed)
}

// reboots ends everything on the host abruptly and starts it again.
func (m *member) reboots() {
	ctx := m.Context()
	before := m.containers()
	m.crash()
	m.engine.Kill()
	for _, id := range before {
		if err := m.host.Engine().Kill(ctx, id); err != nil {
			m.Fatal(err)
		}
	}
	m.world.Reboot()
	if err := m.Reboot(ctx); err != nil {
		m.Fatal(err)
	}
	begin := time.Now()
	m.boot()
	m.startAgents()
	m.until(5*time.Minute, "pods after a reboot", func(context.Context) error {
		if err := m.ready(begin); err != nil {
			return err
		}
		return m.podsReady(9, m.restarts+1)
	})
	m.did("reboot: 9 pods Ready again", seconds(time.Since(begin)))
	m.services()
	if got := m.inPod("my-empty-dir-pod cat /cache/file"); strings.TrimSpace(got) != "kept" {
		m.Errorf("emptyDir after a reboot: %q", got)
	}
	m.state("state after a reboot", relayed)
}

// writeLog writes a log for those who look for a fault.
func (m *member) writeLog(name, text string) error {
	return os.WriteFile(filepath.Join(cluster.Root, fmt.Sprintf("_output/wine/%s-%d.log", name, m.Build)), []byte(text), 0o644)
}

// leaves deletes everything and checks that nothing remains.
func (m *member) leaves() {
	ctx := m.Context()
	if _, err := cluster.Kubectl(ctx, "delete", "namespace", m.space, "--wait=false"); err != nil {
		m.Fatal(err)
	}
	took := m.until(5*time.Minute, "no container", func(ctx context.Context) error {
		list, err := m.host.Engine().Containers(ctx)
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("%d containers", len(list))
		}
		return err
	})
	m.did("namespace deleted: no container after", seconds(took))
	m.until(time.Minute, "no directory of a pod", func(context.Context) error {
		left, err := os.ReadDir(m.Path(`C:\var\lib\kubelet\pods`))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left: %v", len(left), left)
		}
		return err
	})
	m.did("no directory of a pod left", "ok")
	m.stopServices()
	m.deleteNetwork()
	m.removeRule()
	m.cleanup()
	m.nothingLeft()
	m.did("proxy.exe --cleanup: nothing left", "ok")
	faults, err := m.ask(ctx, http.MethodGet, "/_faults", "")
	if err != nil || faults != "" {
		m.Errorf("requests that a Windows client should not make: %v\n%s", err, faults)
	}
	calls, err := m.ask(ctx, http.MethodGet, "/_calls", "")
	if err != nil || !strings.Contains(calls, "POST /containers/create 201") {
		m.Errorf("the engine's log: %v %.200s", err, calls)
	}
	m.did("engine's calls since the reboot, faults", fmt.Sprintf("%d, %d", strings.Count(calls, "\n")+1, 0))
	m.kinds()
	m.did("calls of HNS, IP Helper, netsh; unknown", fmt.Sprintf("%d, %d", len(m.world.Log.Calls()), len(m.world.Log.Unknown())))
	for name, log := range map[string]string{"calls": calls, "simulators": m.world.Log.String()} {
		if err := m.writeLog(name, log); err != nil {
			m.Error(err)
		}
	}
	if err := m.forget(ctx); err != nil {
		m.Error(err)
	}
}
