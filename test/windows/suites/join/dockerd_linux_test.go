package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/moby"
	"github.com/winkube/winkube/test/windows/simulators/hcs"
)

// dockerNode is a node whose engine is moby's dockerd.exe: containers are systems of the simulated HCS, which run no program.
type dockerNode struct {
	*member
	daemon       *moby.Daemon
	exited       int32 // how often the container of pod web has ended by itself
	engineStarts int32 // how often the engine has started since the pods were made
}

func newDockerNode(t *testing.T, host *lab.Host, release moby.Release) *dockerNode {
	t.Helper()
	m := bareMember(t, host, release.Build)
	m.mirrored = podNetwork // no engine beneath gives Linux the gateway's address
	m.world.Compute = nil
	m.world.HCS.Program = sampleProgram
	moby.MountVolumes(m.world.HCS, m.Prefix, t.Error)
	if err := release.Prepare(t.Context(), m.Prefix, moby.Image{Name: lab.PauseImage, Entrypoint: []string{"/pause"}},
		moby.Image{Name: lab.SampleImage, Entrypoint: []string{"/sample"}, Cmd: []string{"serve"}}); err != nil {
		t.Fatal(err)
	}
	exe, err := release.Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := &dockerNode{member: m, daemon: &moby.Daemon{Prefix: m.Prefix, Exe: exe, Address: "127.0.0.1:2374"}}
	d.daemon.Client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.dial}}
	t.Cleanup(func() {
		d.daemon.Kill()
		if err := m.writeLog("dockerd", d.daemon.Output()); err != nil {
			t.Error(err)
		}
	})
	d.startDaemon()
	m.named()
	return d
}

// sampleProgram is what the simulated processes of the images do: the part of test/images/sample that the test needs.
func sampleProgram(commandLine string) hcs.Program {
	words := strings.Fields(commandLine)
	if len(words) < 2 || words[0] != "/sample" {
		return hcs.Program{}
	}
	switch words[1] {
	case "serve":
		return hcs.Program{Output: "serving on :" + strings.Join(words[2:], "") + "\n"}
	case "echoargs":
		return hcs.Program{Output: strings.Join(words[2:], " ") + "\n", Ends: true}
	case "exit":
		code, err := strconv.ParseUint(words[2], 10, 32)
		return hcs.Program{Output: "ends\n", Ends: err == nil, Code: uint32(code)}
	}
	return hcs.Program{Output: commandLine + ": no such command\n", Ends: true, Code: 127}
}

// dial connects in the host's network.
func (d *dockerNode) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		net.Conn
		error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // without unlocking: the thread, which is in that namespace, ends with the goroutine
		file, err := os.Open("/run/netns/" + d.host.Namespace())
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			made <- result{error: err}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		made <- result{conn, err}
	}()
	r := <-made
	return r.Conn, r.error
}

func (d *dockerNode) startDaemon() {
	d.Helper()
	if err := d.daemon.Start(d.Context()); err != nil {
		d.Fatalf("%v: dockerd.exe printed\n%s", err, d.daemon.Output())
	}
}

// errGone is the engine's answer about a container that it does not have.
var errGone = errors.New("no such container")

// get asks dockerd.exe itself.
func (d *dockerNode) get(path string, into any) error {
	request, err := http.NewRequestWithContext(d.Context(), http.MethodGet, d.daemon.URL()+path, nil)
	if err != nil {
		return err
	}
	response, err := d.daemon.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode == http.StatusNotFound {
		return errGone
	}
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, response.Status, text)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

// inspects returns all containers that dockerd.exe has, by name.
func (d *dockerNode) inspects() (map[string]container.InspectResponse, error) {
	var list []struct{ ID string }
	if err := d.get("/containers/json?all=1", &list); err != nil {
		return nil, err
	}
	all := map[string]container.InspectResponse{}
	for _, one := range list {
		var in container.InspectResponse
		err := d.get("/containers/"+one.ID+"/json", &in)
		if errors.Is(err, errGone) {
			continue // since the list
		}
		if err != nil {
			return nil, err
		}
		all[strings.TrimPrefix(in.Name, "/")] = in
	}
	return all, nil
}

// needs returns the IDs of the running containers that a pod needs, if dockerd.exe has each of them as the pod says, and HNS its endpoint.
func (d *dockerNode) needs(pod *v1.Pod, all map[string]container.InspectResponse) (ids []string, err error) {
	of := func(name string) (one container.InspectResponse, err error) {
		found := 0
		for _, in := range all {
			l := in.Config.Labels
			if in.State.Running && l["io.kubernetes.pod.uid"] == string(pod.UID) && l["io.kubernetes.container.name"] == name && l["io.kubernetes.pod.name"] == pod.Name &&
				l["io.kubernetes.pod.namespace"] == pod.Namespace && l["io.winkube.node"] == d.host.Name {
				one = in
				found++
			}
		}
		if found != 1 {
			err = fmt.Errorf("dockerd.exe runs %d containers %s of pod %s", found, name, pod.Name)
		}
		return one, err
	}
	sandbox, err := of("POD")
	if err != nil {
		return nil, err
	}
	if mode := string(sandbox.HostConfig.NetworkMode); mode != d.sandboxNetwork() || sandbox.Config.Image != lab.PauseImage {
		return nil, fmt.Errorf("the sandbox of pod %s has network %s, image %s", pod.Name, mode, sandbox.Config.Image)
	}
	ids = append(ids, sandbox.ID)
	for i, c := range pod.Spec.Containers {
		one, err := of(c.Name)
		if err != nil {
			return nil, err
		}
		h, limits := one.HostConfig, c.Resources.Limits
		if h.NetworkMode.ConnectedContainer() != sandbox.ID || h.NanoCPUs != limits.Cpu().MilliValue()*1e6 || h.Memory != limits.Memory().Value() || h.RestartPolicy.Name != "no" ||
			!slices.Equal([]string(one.Config.Cmd), c.Args) || "docker://"+one.ID != pod.Status.ContainerStatuses[i].ContainerID {
			return nil, fmt.Errorf("container %s of pod %s is %s with %v, %+v", c.Name, pod.Name, one.ID, one.Config.Cmd, h)
		}
		for _, e := range c.Env {
			if !slices.Contains(one.Config.Env, e.Name+"="+e.Value) {
				return nil, fmt.Errorf("container %s of pod %s has the variables %q", c.Name, pod.Name, one.Config.Env)
			}
		}
		for _, mount := range c.VolumeMounts {
			if !slices.ContainsFunc(one.Mounts, func(m container.MountPoint) bool {
				return strings.HasSuffix(strings.ReplaceAll(m.Destination, `\`, "/"), mount.MountPath) && m.RW != mount.ReadOnly
			}) {
				return nil, fmt.Errorf("container %s of pod %s has the mounts %+v", c.Name, pod.Name, one.Mounts)
			}
		}
		ids = append(ids, one.ID)
	}
	return ids, d.connected(pod, ids)
}

// sandboxNetwork is the network that Docker gives a sandbox: from Server 2022 on the pods', before none, as the kubelet makes the endpoints itself.
func (d *dockerNode) sandboxNetwork() string {
	if d.Build < firstSchema27 {
		return "none"
	}
	return podNetwork
}

// connected wants HNS to have one endpoint with the pod's address, to which all the pod's containers are attached.
func (d *dockerNode) connected(pod *v1.Pod, ids []string) error {
	endpoints, err := d.endpoints()
	if err != nil {
		return err
	}
	found := 0
	for _, e := range endpoints {
		if e.IPAddress != pod.Status.PodIP {
			continue
		}
		found++
		slices.Sort(e.SharedContainers)
		if !slices.Equal(e.SharedContainers, slices.Sorted(slices.Values(ids))) {
			return fmt.Errorf("endpoint %s of pod %s is attached to %v, want %v", e.IPAddress, pod.Name, e.SharedContainers, ids)
		}
	}
	if prefix, err := netip.ParsePrefix(d.podCIDR); err != nil || found != 1 || !prefix.Contains(netip.MustParseAddr(pod.Status.PodIP)) {
		return fmt.Errorf("HNS has %d endpoints with address %q of pod %s, in %s", found, pod.Status.PodIP, pod.Name, d.podCIDR)
	}
	return nil
}

// endpoint is an endpoint as HNS shows it.
type endpoint struct {
	ID, IPAddress    string
	SharedContainers []string
}

func (d *dockerNode) endpoints() ([]endpoint, error) {
	var answer struct{ Output []endpoint }
	_, text, _ := d.world.HNS.Call("HNSCall", []string{http.MethodGet, "/endpoints/", ""})
	err := json.Unmarshal([]byte(text), &answer)
	return answer.Output, err
}
