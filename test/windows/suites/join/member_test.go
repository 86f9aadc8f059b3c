package join

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/launch"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// beneath matches the interfaces of the Linux engine.
var beneath = regexp.MustCompile(`^(docker|br-|veth)`)

// simPort is the port on which programs in the prefix reach the simulators.
const simPort = 2376

// podNetwork is the pods' Docker network, which kubelet.exe creates.
const podNetwork = "winkube"

// member is the third node.
type member struct {
	*testing.T
	*rig.Prefix
	host     *lab.Host
	world    *sim.World // HNS, IP Helper, netsh, counters
	begin    time.Time
	space    string // namespace of this test's pods
	podCIDR  string
	restarts int32           // restarts of each container so far
	updated  map[string]bool // golden files that -update has written
	engine   *launch.Program
	relay    func()
	kubelet  *launch.Program
	proxy    *launch.Program
	flanneld *launch.Program
	window   map[string]string // variables of the administrator's window
	mirrored string            // the host's endpoint in HNS that Linux has too, as the pods' gateway; "": the engine beneath makes it
}

func newMember(t *testing.T, host *lab.Host, build int) *member {
	t.Helper()
	m := bareMember(t, host, build)
	m.startEngine()
	return m
}

// bareMember is newMember without an engine.
func bareMember(t *testing.T, host *lab.Host, build int) *member {
	t.Helper()
	p, err := rig.OpenIn(t.Context(), build, host.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	m := &member{T: t, Prefix: p, host: host, begin: time.Now(), updated: map[string]bool{}}
	if build < firstSchema27 {
		m.mirrored = podNetwork
	}
	t.Cleanup(func() {
		for _, one := range []*launch.Program{m.kubelet, m.proxy, m.engine} {
			one.Kill()
		}
		if err := errors.Join(p.WriteProfile(fmt.Sprintf("join-%s-%d", t.Name(), build)), p.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := m.forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.simulate()
	t.Cleanup(func() {
		if t.Failed() {
			if err := m.writeLog("simulators", m.world.Log.String()); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

// simulate adds what Wine lacks to the host. The simulators run in this process, in the machine's network.
func (m *member) simulate() {
	m.Helper()
	m.world = sim.New(m.Build, "eth0") // Wine's name of the host's adapter
	m.world.IPHelper.Hidden = func(name string) bool { return beneath.MatchString(name) }
	m.world.Compute, m.world.Address = m.compute, m.host.Addr
	m.world.IPHelper.OnAddress, m.world.IPHelper.OnRoute = m.mirror, m.mirrorRoute
	m.world.OnAdapter, m.world.OnAttach = m.mirrorGateway, m.mirrorEndpoint
	socket := m.host.RunDir("sim.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		m.Fatal(err)
	}
	m.world.Serve(listener)
	m.Cleanup(m.world.Close)
	m.leadTo(socket)
	m.serveRegistry()
	if err := m.world.Install(m.Context(), m.Prefix, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: simPort}); err != nil {
		m.Fatal(err)
	}
}

// leadTo forwards a port of the host to the simulators. Its connections, including HNS notifications, survive a restart of the engine, as on
// Windows.
func (m *member) leadTo(socket string) {
	m.Helper()
	cmd := m.host.Command(m.Context(), filepath.Join(bin, "windockerd"), fmt.Sprintf("--forward=%d=%s", simPort, socket))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		m.Fatalf("nothing leads to the simulators: %v", err)
	}
}

// mirror adds the addresses that proxy.exe adds through IP Helper to the Linux host: its sockets need them.
func (m *member) mirror(added bool, address netip.Prefix, _ string) {
	if !address.IsSingleIP() {
		return // on an HNS adapter: the Linux network has its own address
	}
	m.onLinux(added, "address", address.String(), "dev", "lo")
}

// mirrorRoute does the same with routes.
func (m *member) mirrorRoute(added bool, prefix netip.Prefix, via netip.Addr) {
	m.onLinux(added, "route", prefix.String(), "via", via.String())
}

func (m *member) onLinux(added bool, object string, args ...string) {
	verb := "del"
	if added {
		verb = "replace"
	}
	if _, err := m.host.Exec(context.Background(), append([]string{"ip", object, verb}, args...)...); err != nil && added {
		m.Errorf("cannot mirror %s: %v", object, err)
	}
}

// forget removes what an earlier member left in the cluster, in the engine and on the host: its Node, containers, network, mirrored
// addresses and routes.
func (m *member) forget(ctx context.Context) error {
	if _, err := m.host.Exec(ctx, "ip", "address", "flush", "dev", "lo", "scope", "global"); err != nil {
		return err
	}
	for _, other := range slices.Concat(cluster.Nodes, cluster.Windows) {
		if _, err := m.host.Exec(ctx, "ip", "route", "flush", "via", other.Addr.String()); err != nil {
			return err
		}
	}
	if _, err := cluster.Kubectl(ctx, "delete", "namespace", "--selector="+hostLabel+"="+m.host.Name, "--wait=false"); err != nil {
		return err
	}
	now := int64(0)
	onNode := metav1.ListOptions{FieldSelector: "spec.nodeName=" + m.host.Name}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, onNode)
	if err != nil {
		return err
	}
	for _, one := range pods.Items {
		if err := client.CoreV1().Pods(one.Namespace).Delete(ctx, one.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if err := client.CoreV1().Nodes().Delete(ctx, m.host.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	list, err := m.host.Engine().Containers(ctx)
	if err != nil {
		return err
	}
	for _, one := range list {
		if err := m.host.Engine().Remove(ctx, one.ID); err != nil {
			return err
		}
	}
	// The device stays: Wine has the first index of a name for ever.
	if _, err := m.host.Exec(ctx, "sh", "-c", "ip address flush dev "+ownBridge+" 2>/dev/null || true"); err != nil {
		return err
	}
	return m.host.Engine().RemoveNetwork(ctx, podNetwork)
}

// boot starts what Windows starts by itself: the engine and its pipe.
func (m *member) boot() {
	m.Helper()
	if m.engine == nil || m.engine.Over() {
		m.startEngine()
	}
	stop, err := m.Relay(m.Context(), rig.DockerPipe, "127.0.0.1:2375")
	if err != nil {
		m.Fatal(err)
	}
	m.relay = stop
}

func (m *member) startEngine() {
	m.Helper()
	cmd := m.host.Command(m.Context(), filepath.Join(bin, "windockerd"), fmt.Sprintf("--build=%d", m.Build), "--drive="+m.Path(`C:\`), "--engine="+m.host.EngineSocket(), "--socket="+m.socket(),
		"--hns="+m.host.RunDir("sim.sock"), "--registry="+m.host.RunDir("registry.sock"))
	m.engine = launch.Start(m.T, "windockerd", cmd)
	m.served(time.Minute, "windockerd", func(ctx context.Context) error { _, err := m.ask(ctx, http.MethodGet, "/_ping", ""); return err })
}

// startAgents starts both programs with the command lines from the seeds' pages, and credentials.
func (m *member) startAgents() {
	m.Helper()
	m.startKubelet()
	m.startProxy()
}

func (m *member) startKubelet() {
	m.Helper()
	m.kubelet = launch.Start(m.T, "kubelet.exe", m.agent("kubelet.exe", m.kubeletFlags()))
}

func (m *member) startProxy(more ...string) {
	m.Helper()
	m.proxy = launch.Start(m.T, "proxy.exe", m.agent("proxy.exe", append(m.proxyFlags(), more...)))
}

// agent prepares one of our programs.
func (m *member) agent(exe string, flags []string) *exec.Cmd {
	return m.agentAt(filepath.Join(bin, exe), flags)
}

// agentAt prepares the program at path. Its flags are those of the guides.
func (m *member) agentAt(path string, flags []string) *exec.Cmd {
	m.Helper()
	m.inGuides(flags)
	cmd := m.Command(m.Context(), path, flags...)
	for name, value := range m.window {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// setVariables sets the variables of the windows in which programs start. On Server 2016 one names the adapter for service addresses, as the guide
// and the seeds' pages do. On later Servers the proxy creates one.
func (m *member) setVariables() {
	m.Helper()
	if m.world.HNS.V2() {
		return
	}
	m.window = map[string]string{"INTERFACE_TO_ADD_SERVICE_IP": "vEthernet (HNS Internal NIC)"}
	for name, value := range m.window { // a service has them in its own value Environment, which Wine's service manager does not read
		if err := m.SetRegistry(m.Context(), `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Control\Session Manager\Environment`, name, value); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *member) kubeletFlags() []string {
	pki := func(name string) string { return rig.WindowsPath(m.host.PKI(name)) }
	return append([]string{"--hostname-override=" + m.host.Name, "--resolv-conf=", "--kubeconfig=" + pki("kubelet.kubeconfig"), "--node-ip=" + m.host.Addr.String(),
		"--client-ca-file=" + pki("ca.crt"), "--tls-cert-file=" + pki("kubelet-server.crt"), "--tls-private-key-file=" + pki("kubelet-server.key"),
		"--cluster-cidr=" + lab.PodCIDR, "--feature-gates=HyperVContainer=true", "--v=2"}, labFlags...)
}

func (m *member) proxyFlags() []string {
	return []string{"--v=3", "--proxy-mode=userspace", "--hostname-override=" + m.host.Name,
		"--kubeconfig=" + rig.WindowsPath(m.host.PKI("proxy.kubeconfig")), "--bind-address=" + m.host.Addr.String()}
}

// memory is the resident set size of a program as text.
func memory(p *launch.Program) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	var kilobytes int
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d MB", kilobytes/1000)
}

// socket returns the socket of the Windows engine for the test itself.
func (m *member) socket() string { return m.host.RunDir("windows.sock") }

// ask sends a request to the Windows engine, independent of kubelet.exe.
func (m *member) ask(ctx context.Context, method, path, body string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", m.socket())
	}}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return string(text), err
}

// crash kills both agents, like a power failure.
func (m *member) crash() {
	m.kubelet.Kill()
	m.proxy.Kill()
}

// onServer runs a test on the next free host as one Windows Server.
func onServer(t *testing.T, build int, do func(m *member)) {
	onHost(t, build, func(t *testing.T, host *lab.Host) { do(newMember(t, host, build)) })
}

// onHost runs a test of one Windows Server on the next free host.
func onHost(t *testing.T, build int, do func(t *testing.T, host *lab.Host)) {
	t.Run(strconv.Itoa(build), func(t *testing.T) {
		t.Parallel()
		host := <-free
		t.Cleanup(func() { free <- host })
		do(t, host)
	})
}

// forgetAtEnd removes the Node and what it had at the end of the test, and shows what the service kubelet logged if that failed.
func (m *member) forgetAtEnd() {
	m.Cleanup(func() {
		if text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`)); err == nil && m.Failed() {
			fmt.Fprintf(m.Output(), "kubelet.exe logged, at its end:\n%s\n", text[max(0, len(text)-12000):])
		}
		if err := m.forget(context.Background()); err != nil {
			m.Error(err)
		}
	})
}
