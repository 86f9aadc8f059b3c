package join

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/launch"
)

// hnsRestarts lets HNS crash and come back with what it keeps. Where it loses endpoints, pods are recreated, once. (The containers beneath keep
// their networks, so that only what HNS says tells the kubelet.)
func (m *member) hnsRestarts() {
	before := m.containers()
	m.world.HNS.Crash()
	m.services()
	begin := time.Now()
	m.world.HNS.Start()
	kept := m.world.HNS.Restores()
	if !kept {
		m.restarts++
	}
	m.until(4*time.Minute, "pods after a crash of HNS", func(context.Context) error {
		if err := m.ready(time.Time{}); err != nil {
			return err
		}
		if err := m.podsReady(9, m.restarts); err != nil {
			return err
		}
		if err := m.sameState(relayed); err != nil { // before the engine is asked, which costs more
			return err
		}
		if after := m.containers(); slices.Equal(before, after) != kept {
			return fmt.Errorf("containers are the same: %t, endpoints were kept: %t", !kept, kept)
		}
		return nil
	})
	m.did("crash of HNS: pods connected again after", seconds(time.Since(begin)))
	m.restartedSoOften()
	m.services()
	m.inPod("my-secret-pod env")
	m.state("state after a crash of HNS", relayed)
}

// restartedSoOften wants each container to have been recreated as often as there was reason, not once more.
func (m *member) restartedSoOften() {
	m.Helper()
	pods, err := client.CoreV1().Pods(m.space).List(m.Context(), metav1.ListOptions{})
	if err != nil {
		m.Fatal(err)
	}
	for i := range pods.Items {
		for _, status := range pods.Items[i].Status.ContainerStatuses {
			if status.RestartCount != m.restarts {
				m.Errorf("container %s of pod %s was restarted %d times, want %d", status.Name, pods.Items[i].Name, status.RestartCount, m.restarts)
			}
		}
	}
}

// kind is a network of Windows that the kubelet makes for its flags.
type kind struct {
	name   string
	flags  []string
	proxy  []string // flags of proxy.exe, which runs beside the kubelet; nil: none runs
	pod    bool     // one pod is on it all the time
	brief  bool     // its network is another kind's, so that crashes and a reboot tell nothing new
	remove func()   // with which the kubelet leaves the node
}

// kinds goes through the other networks of this Windows: their first start, kill -9, a crash of HNS and a reboot. Server 2016 has one.
func (m *member) kinds() {
	if !m.world.HNS.V2() {
		said, err := m.Finish(m.agent("kubelet.exe", append(m.kubeletFlags(), "--network-mode=overlay")))
		if want := fmt.Sprintf("HNS of build %d does not support subnets of other nodes; want host-gateway or upstream", m.Build); err == nil || !strings.Contains(said.Stderr, want) {
			m.Errorf("overlay: %v: %s; want %s", err, said, want)
		}
		return
	}
	for _, windows := range []network.WindowsNetwork{network.Transparent, network.NAT} {
		m.goThrough(kind{name: string(windows), flags: []string{"--windows-network=" + string(windows)}, remove: m.deleteNetwork})
	}
	m.goThrough(kind{name: "overlay", flags: []string{"--network-mode=overlay"}, pod: true, remove: m.deleteOverlay})
	m.nothingLeft()
}

// lastServiceAddress makes a Service near the end of the range, with an endpoint, so that each back end treats it as others. Until a proxy reports, the
// kubelet learns the range from the cluster IPs that it sees. What other Services have, and which of both is first, is a matter of chance.
func (m *member) lastServiceAddress() {
	m.Helper()
	services := client.CoreV1().Services("default")
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "last-address-" + m.host.Name}}
	service.Spec = v1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.255.%d", m.host.Addr.As4()[3]), Ports: []v1.ServicePort{{Port: 80}}}
	remove := func() {
		if err := services.Delete(context.Background(), service.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			m.Error(err)
		}
	}
	remove() // a killed test's
	m.Cleanup(remove)
	service, err := services.Create(m.Context(), service, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	port := int32(80)
	slice := &discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: []string{"192.0.2.1"}}}, Ports: []discovery.EndpointPort{{Port: &port}}}
	slice.GenerateName, slice.Labels = service.Name+"-", map[string]string{discovery.LabelServiceName: service.Name}
	slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(m.Context(), slice, metav1.CreateOptions{}); err != nil {
		m.Fatal(err)
	}
}

func (m *member) goThrough(k kind) {
	start := func() {
		begin := time.Now()
		m.kubelet = launch.Start(m.T, "kubelet.exe", m.agent("kubelet.exe", append(m.kubeletFlags(), k.flags...)))
		// What was right before may still be: a program that is stopped before it listens for Ctrl-C does not hear it.
		m.until(3*time.Minute, "Node Ready with network "+k.name, func(context.Context) error { return m.ready(begin) })
		m.podCIDR = m.rangeOfNode()
		if k.proxy != nil {
			m.startProxy(k.proxy...)
			m.proxyServes()
		}
	}
	state := func(when string) {
		if k.pod {
			m.until(4*time.Minute, "the pod, "+when, func(context.Context) error {
				err := m.podsReady(1, 0)
				if err == nil && !*update {
					err = m.sameState(k.name)
				}
				return err
			})
		}
		m.state("network "+k.name+", "+when, k.name)
	}
	m.world.Reboot() // of what was switched on for the network before
	start()
	if k.pod {
		m.podOfKind()
	}
	state("first start")
	m.crash()
	start()
	state("kill -9")
	if !k.brief {
		m.world.HNS.Restart()
		state("crash of HNS")
		m.kubelet.Stop() // as an orderly shutdown does; reboots is a loss of power
		m.engine.Stop()
		m.world.Reboot()
		if err := m.Reboot(m.Context()); err != nil {
			m.Fatal(err)
		}
		m.boot()
		start()
		state("reboot")
	}
	if k.pod {
		m.deletePodOfKind()
	}
	m.kubelet.Stop()
	if k.proxy != nil {
		m.proxy.Stop()
		m.cleanup(k.proxy...)
	}
	k.remove()
	m.removeRule()
}

// podOfKind makes a pod whose names are the same in each run, DNS among them.
func (m *member) podOfKind() {
	m.namespace("kind")
	grace := int64(0)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pause", Namespace: m.space}, Spec: v1.PodSpec{NodeName: m.host.Name, TerminationGracePeriodSeconds: &grace,
		DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{lab.ServiceIP}, Searches: []string{"kind.example", "example"}},
		Containers: []v1.Container{{Name: "pause", Image: lab.PauseImage, ImagePullPolicy: v1.PullNever}}}}
	if _, err := client.CoreV1().Pods(m.space).Create(m.Context(), p, metav1.CreateOptions{}); err != nil {
		m.Fatal(err)
	}
}

// hostsEndpoint is in the lines of the host's endpoints, which stay.
const hostsEndpoint = "attached to host"

// deletePodOfKind deletes it, and wants its container and its endpoint gone.
func (m *member) deletePodOfKind() {
	if err := client.CoreV1().Pods(m.space).Delete(m.Context(), "pause", metav1.DeleteOptions{}); err != nil {
		m.Fatal(err)
	}
	m.until(3*time.Minute, "neither container nor endpoint", func(ctx context.Context) error {
		list, err := m.host.Engine().Containers(ctx)
		state := m.world.HNS.String()
		if err == nil && (len(list) > 0 || strings.Contains(strings.ReplaceAll(state, hostsEndpoint, ""), "attached to")) {
			err = fmt.Errorf("%d containers; HNS has\n%s", len(list), state)
		}
		return err
	})
	m.did("one pod through its network's life, then gone", "ok")
}

// deleteOverlay removes the network that the engine does not know, and what the Node reports about it.
func (m *member) deleteOverlay() {
	m.Helper()
	m.deleteFromHNS(vxlan.DeviceName(true))
	node, err := client.CoreV1().Nodes().Get(m.Context(), m.host.Name, metav1.GetOptions{})
	if err != nil {
		m.Fatal(err)
	}
	if end, err := vxlan.Parse(node.Annotations, m.host.Addr); err != nil || end.Public != m.host.Addr {
		m.Errorf("the Node reports %+v, %v about its tunnel: %v", end, err, vxlan.Known(node.Annotations))
	}
}

// doctor runs `kubelet.exe network doctor` on the healthy node. Wine's service manager has neither hns nor docker, which it says.
func (m *member) doctor() {
	args := []string{"network", "doctor", "--node-ip=" + m.host.Addr.String(), "--cluster-cidr=" + lab.PodCIDR, "--service-cidr=" + lab.ServiceCIDR}
	out, err := m.agent("kubelet.exe", args).Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.Fatal(err)
	}
	names, err := m.names()
	if err != nil {
		m.Fatal(err)
	}
	got := counts.ReplaceAllString(strings.ReplaceAll(string(out), "\r\n", "\n"), "N $1")
	got = listeners.ReplaceAllString(got, "${1}PORTS")
	got = address.ReplaceAllStringFunc(got, func(found string) string { return cmp.Or(names[found], found) })
	path := fmt.Sprintf("testdata/%d.doctor", m.Build)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		m.Errorf("%s: %v; the doctor reports\n%s\nwant\n%s", path, err, got, want)
	}
	m.did("kubelet.exe network doctor", "ok")
}

// counts are how the doctor counts what other tests make: routes to the other Windows node, and Services.
var counts = regexp.MustCompile(`\b\d+ (routes|service addresses)`)

// listeners are what the doctor finds on this machine; Wine does not always find their processes.
var listeners = regexp.MustCompile(`(?m)(programs listening on all addresses; .*: )TCP 10250\b.*$`)

// deleteFromHNS removes the network of that name, as Remove-HnsNetwork does.
func (m *member) deleteFromHNS(name string) {
	m.Helper()
	var answer struct{ Output []struct{ ID, Name string } }
	_, text, _ := m.world.HNS.Call("HNSCall", []string{http.MethodGet, "/networks/", ""})
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		m.Fatal(err)
	}
	for _, n := range answer.Output {
		if n.Name == name {
			m.world.HNS.Call("HNSCall", []string{http.MethodDelete, "/networks/" + n.ID, ""})
		}
	}
}

// deleteNetwork removes the pods' network by the engine, which on older Windows has it only when it has found it in HNS at its start.
func (m *member) deleteNetwork() {
	m.Helper()
	_, err := m.ask(m.Context(), http.MethodDelete, "/networks/"+podNetwork, "")
	switch {
	case err != nil && m.Build < firstSchema27:
		m.deleteFromHNS(podNetwork)
	case err != nil:
		m.Error(err)
	}
}

// nothingLeft looks for what is left on the host, and for calls that the simulators do not know.
func (m *member) nothingLeft() {
	m.Helper()
	if left, err := m.dump(); err != nil || m.without(left) != "" {
		m.Errorf("left in HNS, IP Helper and netsh beside the network nat: %v\n%s", err, m.without(left))
	}
	if unknown := m.world.Log.Unknown(); len(unknown) > 0 {
		m.Errorf("the simulators got unknown calls: %v", unknown)
	}
}
