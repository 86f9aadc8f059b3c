package join

import (
	"context"
	"errors"
	"fmt"
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

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/cniplugins"
	"github.com/winkube/winkube/test/windows/launch"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/powershell"
)

// TestModes runs Windows nodes in the modes in which other programs connect the nodes: upstream, where a router has the routes, and cni, where
// flanneld.exe and win-bridge.exe, both unmodified, also create the pod network.
func TestModes(t *testing.T) {
	for _, build := range rig.Wanted(17763, 20348, 26100) { // whether mode cni works on Server 2016 is not known (docs/guides/network.md)
		onServer(t, build, (*member).throughModes)
	}
}

func (m *member) throughModes() {
	m.boot()
	m.lastServiceAddress()
	upstream := []string{"--network-mode=upstream"}
	m.goThrough(kind{name: "upstream", flags: upstream, proxy: upstream, pod: true, brief: true, remove: m.deleteNetwork})
	m.nothingLeft()
	m.did("mode upstream: nothing left", "ok")
	if err := m.forget(m.Context()); err != nil {
		m.Fatal(err)
	}
	m.world.Reboot() // of what was switched on for the network before
	m.pluggable()
}

// serviceAndPeer are the Service of a pod, and a pod on a Linux node.
const serviceAndPeer = `---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: linux}
spec:
  nodeName: LINUX
  terminationGracePeriodSeconds: 1
  containers: [{name: linux, image: ` + lab.SampleImage + `, imagePullPolicy: Never, args: [serve, "8080"]}]
`

// servedPod is a pod with serviceAndPeer.
const servedPod = `---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  dnsPolicy: None
  dnsConfig: {nameservers: [` + lab.ServiceIP + `], searches: [modes.example, example]}
  containers: [{name: web, image: ` + lab.SampleImage + `, imagePullPolicy: Never, args: [serve, "8080"]}]
` + serviceAndPeer

// The network that flannel creates with the configuration of docs/guides/network.md, and its endpoint on the host.
const (
	flannelNetwork = "cbr0"
	flannelGateway = "cbr0_ep"
)

// pluggable makes the host join with `kubelet.exe node join` in mode cni, as the guides describe, and leave again.
func (m *member) pluggable() {
	m.Helper()
	m.mirrored = flannelGateway
	m.forgetAtEnd()
	if err := m.world.InstallPowerShell(m.Context(), m.Prefix); err != nil { // called by flannel
		m.Fatal(err)
	}
	m.named()
	begin := time.Now()
	joined := m.beginJoin(append(slices.Clone(cniplugins.Flags), "--v=2"), []string{"--network-mode=cni", "--v=3"})
	m.podCIDR = m.rangeOfNode()
	ranges := m.flannel()
	if err := cniplugins.Install(m.Context(), m.Prefix, "win-bridge", ranges); err != nil {
		m.Fatal(err)
	}
	if said := <-joined; !strings.Contains(said, "Node "+m.host.Name+": Ready") {
		m.Fatalf("kubelet.exe node join printed\n%s", said)
	}
	m.did("mode cni: node join to Node Ready", seconds(time.Since(begin)))
	m.namespace("cni")
	m.apply(strings.ReplaceAll(servedPod, "LINUX", cluster.Nodes[0].Name))
	m.until(90*time.Second, "the pod Ready", func(context.Context) error { return m.podsReady(1, 0) })
	m.servesByPlugin(ranges)
	m.reachesOtherNodes()
	m.did("mode cni: pods of other nodes by flannel's routes", "ok")
	m.state("mode cni: state", "cni")
	m.leavesPlugins()
}

// beginJoin starts the guide's `kubelet.exe node join` with further flags of kubelet and proxy, and returns what it will have printed.
func (m *member) beginJoin(kubelet, proxy []string) <-chan string {
	m.Helper()
	if err := m.Own(m.Path(`C:\new`)); err != nil {
		m.Fatal(err)
	}
	for _, exe := range []string{"kubelet.exe", "proxy.exe"} {
		program, err := os.ReadFile(filepath.Join(bin, exe))
		if err == nil {
			err = m.WriteProgram(m.Path(`C:\new\`+exe), program)
		}
		if err != nil {
			m.Fatal(err)
		}
	}
	cmd := m.joinCommand(m.guidedProgram(), kubelet, proxy)
	joined := make(chan string, 1)
	go func() {
		said, err := m.Finish(cmd) // its doctor finds what Wine lacks
		joined <- fmt.Sprintf("%s\n%v", said, err)
	}()
	return joined
}

// joinCommand is the guide's `kubelet.exe node join` by the program at path, with further flags of kubelet and proxy.
func (m *member) joinCommand(path string, kubelet, proxy []string) *exec.Cmd {
	m.Helper()
	return m.agentAt(path, slices.Concat(m.joinByGuide(), []string{"--"}, labFlags, kubelet, []string{"--"}, proxy))
}

// rangeOfNode waits until the controller manager has given the Node a pod range.
func (m *member) rangeOfNode() (cidr string) {
	m.Helper()
	m.until(3*time.Minute, "the range of Node "+m.host.Name, func(context.Context) error {
		node, err := watched.Nodes().Lister().Get(m.host.Name)
		if err == nil && node.Spec.PodCIDR == "" {
			err = fmt.Errorf("it has no spec.podCIDR")
		}
		if err == nil {
			cidr = node.Spec.PodCIDR
		}
		return err
	})
	return cidr
}

// flannel starts flanneld.exe with the command in docs/guides/network.md and the administrator's credentials.
func (m *member) flannel() cniplugins.Ranges {
	m.Helper()
	exe, version, err := cniplugins.Program(m.Context(), "flanneld.exe")
	if err != nil {
		m.Fatal(err)
	}
	credentials, err := os.ReadFile(cluster.Control.PKI("admin.kubeconfig"))
	if err != nil {
		m.Fatal(err)
	}
	for name, text := range map[string]string{`C:\k\config`: string(credentials), `C:\k\net-conf.json`: `{"Network": "` + lab.PodCIDR + `", "Backend": {"Type": "host-gw"}}`} {
		if err := os.WriteFile(m.Path(name), []byte(text), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	cmd := m.Command(m.Context(), exe, "--kube-subnet-mgr", `--kubeconfig-file=C:\k\config`, `--net-config-path=C:\k\net-conf.json`, `--subnet-file=C:\k\subnet.env`,
		"--iface="+m.host.Addr.String(), "--ip-masq")
	cmd.Env = append(cmd.Env, "NODE_NAME="+m.host.Name)
	m.flannelNodes()
	m.world.PowerShell.OnRoute = func(added bool, r powershell.Route) error {
		m.mirrorRoute(added, r.To, r.Via)
		return nil
	}
	begin := time.Now()
	m.flanneld = launch.Start(m.T, "flanneld.exe", cmd)
	m.until(3*time.Minute, "flannel's network", func(context.Context) error {
		_, err := os.Stat(m.Path(`C:\k\subnet.env`))
		if state := m.world.HNS.String(); err == nil && !strings.Contains(state, flannelGateway+" attached to host") {
			err = fmt.Errorf("HNS has\n%s", state)
		}
		return err
	})
	m.did("flanneld.exe "+version+": network", seconds(time.Since(begin)))
	return cniplugins.Ranges{Pods: netip.MustParsePrefix(m.podCIDR), Cluster: netip.MustParsePrefix(lab.PodCIDR), Services: netip.MustParsePrefix(lab.ServiceCIDR),
		Node: netip.PrefixFrom(m.host.Addr, 24).Masked(), Host: m.host.Addr}
}

// flannelNodes gives the Linux nodes the annotations that flannel would write there, until the test ends. Their programs are ours, in mode host-gateway, with
// the same routes.
func (m *member) flannelNodes() {
	m.Helper()
	const prefix = "flannel.alpha.coreos.com/"
	for _, node := range cluster.Nodes {
		set := map[string]string{"kube-subnet-manager": "true", "backend-type": "host-gw", "backend-data": "null", "public-ip": node.Addr.String()}
		given, taken := []string{"annotate", "node", node.Name, "--overwrite"}, []string{"annotate", "node", node.Name}
		for key, value := range set {
			given, taken = append(given, prefix+key+"="+value), append(taken, prefix+key+"-")
		}
		if _, err := cluster.Kubectl(m.Context(), given...); err != nil {
			m.Fatal(err)
		}
		m.Cleanup(func() {
			if _, err := cluster.Kubectl(context.Background(), taken...); err != nil {
				m.Error(err)
			}
		})
	}
}

// byPowerShell returns what flannel has made with PowerShell, with the names of interfaces.
func (m *member) byPowerShell() string {
	if m.flanneld == nil {
		return ""
	}
	return interfaceNumber.ReplaceAllStringFunc(m.world.PowerShell.String(), func(found string) string {
		number, err := strconv.Atoi(strings.TrimPrefix(found, "interface "))
		links, err2 := m.host.Exec(m.Context(), "ip", "-o", "link", "show")
		if err := errors.Join(err, err2); err != nil {
			return found + ": " + err.Error()
		}
		name := regexp.MustCompile(fmt.Sprintf(`(?m)^%d: ([^:@]+)`, number)).FindStringSubmatch(links)
		switch {
		case name == nil:
			return found
		case name[1] == ownBridge:
			return strconv.Quote(network.AdapterOf(m.mirrored))
		}
		return strconv.Quote(name[1])
	})
}

var interfaceNumber = regexp.MustCompile(`interface \d+`)

// servesByPlugin wants the plugin's address for the pod, and its Service to answer on the host and in the pod.
func (m *member) servesByPlugin(ranges cniplugins.Ranges) {
	m.Helper()
	pod, err := m.podOf("web")
	if err != nil {
		m.Fatal(err)
	}
	if pod.Status.PodIP != ranges.First() {
		m.Fatalf("the pod has the address %q; want the plugin's %s", pod.Status.PodIP, ranges.First())
	}
	m.serves()
	m.did("mode cni: the plugin's address; a Service", "ok")
}

// podOf returns the pod of that name, or of the Deployment of that name.
func (m *member) podOf(name string) (*v1.Pod, error) {
	pods, err := watched.Pods().Lister().Pods(m.space).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods, func(p *v1.Pod) bool { return p.Name == name || strings.HasPrefix(p.Name, name+"-") })
	if i < 0 {
		return nil, fmt.Errorf("there is no pod of %s", name)
	}
	return pods[i], nil
}

// serves wants the Service web to answer on the host and in its pod.
func (m *member) serves() {
	m.Helper()
	service, err := watched.Services().Lister().Services(m.space).Get("web")
	if err != nil {
		m.Fatal(err)
	}
	url := "http://" + service.Spec.ClusterIP + "/hostname"
	m.served(30*time.Second, "the Service on the host", func(ctx context.Context) error { return m.get(ctx, url, "web") })
	m.served(30*time.Second, "the Service in the pod", func(ctx context.Context) error { return m.fromPod(ctx, url, "web") })
}

// reachesOtherNodes wants the pod and one on a Linux node to reach each other.
func (m *member) reachesOtherNodes() {
	m.Helper()
	var on [2]string
	for i, name := range []string{"web", "linux"} {
		m.until(time.Minute, "the address of pod "+name, func(context.Context) error {
			pod, err := m.podOf(name)
			if err == nil && pod.Status.PodIP == "" {
				err = fmt.Errorf("it has none: %s", pod.Status.Phase)
			}
			if err == nil {
				on[i] = "http://" + pod.Status.PodIP + ":8080/hostname"
			}
			return err
		})
	}
	m.served(30*time.Second, "a pod on Linux from the pod", func(ctx context.Context) error { return m.fromPod(ctx, on[1], "linux") })
	m.served(30*time.Second, "the pod from a Linux node", func(ctx context.Context) error {
		return answers(ctx, cluster.Nodes[0], on[0], "web", filepath.Join(cluster.Tools, "sample"))
	})
}

// fromPod requires a page that begins with want, requested in pod web.
func (m *member) fromPod(ctx context.Context, url, want string) error {
	pod, err := m.podOf("web")
	if err != nil {
		return err
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	details, err := m.host.Engine().Inspect(ctx, id)
	if err != nil {
		return err
	}
	return answers(ctx, m.host, url, want, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", details.State.Pid), filepath.Join(cluster.Tools, "sample"))
}

// answers requires a page that begins with want, as the sample program gets it on a host.
func answers(ctx context.Context, host *lab.Host, url, want string, sample ...string) error {
	out, err := host.Exec(ctx, append(sample, "get", url)...)
	if err == nil && !strings.HasPrefix(out, want) {
		err = fmt.Errorf("%s answers %q", url, out)
	}
	return err
}

// leavesPlugins has the host leave with a running pod: containers, endpoints and leases of the plugin go with it. What flannel made its administrator removes.
func (m *member) leavesPlugins() {
	m.Helper()
	begin := time.Now()
	said, err := m.Finish(m.agentAt(m.guidedProgram(), m.guided(`.\kubelet.exe node leave`)))
	if err != nil || !regexp.MustCompile(`networks: removed [1-9]\d* containers from the network of CNI plugins`).MatchString(said.Stdout) {
		m.Fatalf("kubelet.exe node leave: %v: %s", err, said)
	}
	m.did("mode cni: node leave", seconds(time.Since(begin)))
	m.flanneld.Kill()
	m.flanneld = nil // what it made with PowerShell stays, for the administrator
	if list, err := m.host.Engine().Containers(m.Context()); err != nil || len(list) > 0 {
		m.Errorf("%d containers are left, %v", len(list), err)
	}
	if state := m.world.HNS.String(); strings.Count(state, "endpoint ") != 1 || !strings.Contains(state, flannelGateway) {
		m.Errorf("HNS should have flannel's endpoint alone, and has\n%s", state)
	}
	leases, err := filepath.Glob(filepath.Join(m.Path(`C:\var\lib\cni\networks`), flannelNetwork, "10.*"))
	if err != nil || len(leases) > 0 {
		m.Errorf("leases %q, %v are left", leases, err)
	}
	m.deleteFromHNS(flannelNetwork)
	m.nothingLeft()
	m.did("mode cni: nothing left", "ok")
}
