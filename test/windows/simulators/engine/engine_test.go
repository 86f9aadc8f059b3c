package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/docker/docker/api/types/blkiodev"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/go-connections/nat"

	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// rig is an Engine on top of a fake Linux engine.
type rig struct {
	*Engine
	t       *testing.T
	url     string
	beneath *dockertest.Engine
	listed  atomic.Pointer[[]byte] // if set, the engine beneath still lists these containers
}

func newRig(t *testing.T, build int) *rig {
	beneath := dockertest.New(dockertest.Options{CPUs: 4})
	beneath.AddImage(dockertest.Image{Names: []string{"web:1"}, Cmd: []string{"serve"}})
	r := &rig{t: t, beneath: beneath}
	linux := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if list := r.listed.Load(); list != nil && strings.HasSuffix(request.URL.Path, "/containers/json") {
			_, _ = w.Write(*list)
			return
		}
		beneath.ServeHTTP(w, request)
	}))
	t.Cleanup(linux.Close)
	drive := t.TempDir()
	for _, dir := range []string{"data", `Program Files`} {
		if err := os.Mkdir(filepath.Join(drive, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(drive, "data/hosts"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	e, err := New(Options{Build: build, Drive: drive, CredentialSpec: func(name string) bool { return name == "contoso" }, Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", linux.Listener.Addr().String())
	}})
	if err != nil {
		t.Fatal(err)
	}
	windows := httptest.NewServer(e)
	t.Cleanup(func() { windows.CloseClientConnections(); windows.Close() })
	r.Engine, r.url = e, windows.URL
	return r
}

// call sends a request and decodes the answer into out, if out is not nil. It returns the status and the engine's
// message.
func (r *rig) call(method, path string, body, out any) (int, string) {
	r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var refusal struct{ Message string }
	_ = json.Unmarshal(answer, &refusal)
	if out != nil && response.StatusCode < 300 {
		if err := json.Unmarshal(answer, out); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, answer)
		}
	}
	return response.StatusCode, refusal.Message
}

func (r *rig) create(name string, c container.Config, h container.HostConfig) (int, string) {
	r.t.Helper()
	if c.Image == "" {
		c.Image = "web:1"
	}
	return r.call("POST", "/containers/create?name="+name, container.CreateRequest{Config: &c, HostConfig: &h}, nil)
}

func TestRules(t *testing.T) {
	yes, some := true, int64(5)
	modern, hyperv := 20348, container.Isolation("hyperv")
	res := func(r container.Resources) container.HostConfig { return container.HostConfig{Resources: r} }
	for _, test := range []struct {
		rule   string
		build  int
		config container.Config
		host   container.HostConfig
		want   string
	}{
		{"isolation", modern, container.Config{}, container.HostConfig{Isolation: "vm"}, `Invalid isolation: "vm". Windows supports 'default', 'process', or 'hyperv'`},
		{"isolation", 26100, container.Config{}, container.HostConfig{Isolation: "vm"}, "invalid isolation (vm): Windows supports 'default', 'process', or 'hyperv'"},
		{"shared network options", modern, container.Config{Hostname: "a"}, container.HostConfig{NetworkMode: "container:x"}, "conflicting options: hostname and the network mode"},
		{"shared network options", modern, container.Config{}, container.HostConfig{NetworkMode: "container:x", DNS: []string{"10.0.0.1"}}, "conflicting options: dns and the network mode"},
		{"shared network and hyperv", modern, container.Config{}, container.HostConfig{NetworkMode: "container:x", Isolation: hyperv},
			"Using the network stack of another container is not supported while using Hyper-V Containers"},
		{"shared network before 1709", 14393, container.Config{}, container.HostConfig{NetworkMode: "container:x"}, "invalid network-mode: container networking is not supported on this version of Windows"},
		{"real-time CPU", modern, container.Config{}, res(container.Resources{CPURealtimePeriod: 1}), "Windows does not support CPU real-time period"},
		{"privileged", modern, container.Config{}, container.HostConfig{Privileged: true}, "Windows does not support privileged mode"},
		{"privileged", 26100, container.Config{}, container.HostConfig{Privileged: true}, "invalid option: privileged mode is not supported for Windows containers"},
		{"read-only root", modern, container.Config{}, container.HostConfig{ReadonlyRootfs: true}, "Windows does not support root filesystem in read-only mode"},
		{"CPU shares", modern, container.Config{}, res(container.Resources{CPUShares: 10001}), "range of CPUShares is from 1 to 10000"},
		{"CPU percent", modern, container.Config{}, res(container.Resources{CPUPercent: 101}), "range of CPUPercent is from 1 to 100"},
		{"CPU count", modern, container.Config{}, res(container.Resources{CPUCount: -1}), "invalid CPUCount: CPUCount cannot be negative"},
		{"CPUs and percent", modern, container.Config{}, res(container.Resources{NanoCPUs: 1, CPUPercent: 1}), "conflicting options: Nano CPUs and CPU Percent cannot both be set"},
		{"CPUs and shares", modern, container.Config{}, res(container.Resources{NanoCPUs: 1, CPUShares: 1}), "conflicting options: Nano CPUs and CPU Shares cannot both be set"},
		{"more CPUs than there are", modern, container.Config{}, res(container.Resources{NanoCPUs: 5e9}), "range of CPUs is from 0.01 to 4.00, as there are only 4 CPUs available"},
		{"block weight", modern, container.Config{}, res(container.Resources{BlkioWeight: 10}), "invalid option: Windows does not support BlkioWeight"},
		{"block devices", modern, container.Config{}, res(container.Resources{BlkioDeviceReadBps: []*blkiodev.ThrottleDevice{{Path: "/dev/sda", Rate: 1}}}), "invalid option: Windows does not support BlkioDeviceReadBps"},
		{"cgroup parent", modern, container.Config{}, res(container.Resources{CgroupParent: "/a"}), "invalid option: Windows does not support CgroupParent"},
		{"CPU period", modern, container.Config{}, res(container.Resources{CPUPeriod: 1000}), "invalid option: Windows does not support CPUPeriod"},
		{"CPU set", modern, container.Config{}, res(container.Resources{CpusetCpus: "0"}), "invalid option: Windows does not support CpusetCpus"},
		{"memory set", modern, container.Config{}, res(container.Resources{CpusetMems: "0"}), "invalid option: Windows does not support CpusetMems"},
		{"kernel memory", modern, container.Config{}, res(container.Resources{KernelMemory: 1}), "invalid option: Windows does not support KernelMemory"},
		{"memory reservation", modern, container.Config{}, res(container.Resources{MemoryReservation: 1}), "invalid option: Windows does not support MemoryReservation"},
		{"swap", modern, container.Config{}, res(container.Resources{MemorySwap: -1}), "invalid option: Windows does not support MemorySwap"},
		{"swappiness", modern, container.Config{}, res(container.Resources{MemorySwappiness: &some}), "invalid option: Windows does not support MemorySwappiness"},
		{"OOM kill", modern, container.Config{}, res(container.Resources{OomKillDisable: &yes}), "invalid option: Windows does not support OomKillDisable"},
		{"pids limit", modern, container.Config{}, res(container.Resources{PidsLimit: &some}), "invalid option: Windows does not support PidsLimit"},
		{"ulimits", modern, container.Config{}, res(container.Resources{Ulimits: []*container.Ulimit{{Name: "nofile"}}}), "invalid option: Windows does not support Ulimits"},
		{"restart policy", modern, container.Config{}, container.HostConfig{RestartPolicy: container.RestartPolicy{Name: "sometimes"}},
			"invalid restart policy: unknown policy 'sometimes'; use one of 'no', 'always', 'on-failure', or 'unless-stopped'"},
		{"log driver", modern, container.Config{}, container.HostConfig{LogConfig: container.LogConfig{Type: "journald"}}, `error looking up logging plugin journald: plugin "journald" not found`},
		{"capabilities", modern, container.Config{}, container.HostConfig{CapDrop: []string{"net_raw"}}, `invalid CapDrop: unknown capability: "CAP_NET_RAW"`},
		{"mounts", modern, container.Config{}, container.HostConfig{Binds: []string{`C:\data\hosts:C:\hosts`}},
			`invalid volume specification: 'C:\data\hosts:C:\hosts': invalid mount config for type "bind": source path must be a directory`},
		{"mounts", modern, container.Config{}, container.HostConfig{Binds: []string{"/data:/data"}}, "invalid volume specification: '/data:/data'"},
		{"mounts", modern, container.Config{}, container.HostConfig{Binds: []string{`C:\gone:C:\x`}},
			`invalid volume specification: 'C:\gone:C:\x': invalid mount config for type "bind": bind source path does not exist: c:\gone`},
		{"mounts", modern, container.Config{}, container.HostConfig{Binds: []string{`C:\data:C:\`}},
			`invalid volume specification: 'C:\data:C:\': invalid mount config for type "bind": destination path (c:\) cannot be 'c:' or 'c:\'`},
		{"mounts", 14393, container.Config{}, container.HostConfig{Binds: []string{`\\.\pipe\a:\\.\pipe\a`}},
			`invalid volume specification: '\\.\pipe\a:\\.\pipe\a': invalid mount config for type "npipe": mount type unknown`},
		{"mounts", modern, container.Config{}, container.HostConfig{Mounts: []mount.Mount{{Type: "tmpfs", Target: `C:\t`}}}, `invalid mount config for type "tmpfs": mount type unknown`},
		{"mounts", modern, container.Config{}, container.HostConfig{Mounts: []mount.Mount{{Type: "bind", Source: `C:\data\HOSTS`, Target: `C:\t`}}},
			`invalid mount config for type "bind": source path must be a directory`},
	} {
		t.Run(test.rule, func(t *testing.T) {
			r := newRig(t, test.build)
			want := http.StatusBadRequest
			if before28[test.rule] != "" && test.build != 26100 { // an error of the engine's decoder
				want = http.StatusInternalServerError
			}
			if strings.HasPrefix(test.want, "invalid volume specification: '") && strings.Contains(test.want, "': invalid mount config") { // a bind that parses but cannot be used
				want = http.StatusInternalServerError
			}
			if status, got := r.create("web", test.config, test.host); status != want || got != test.want {
				t.Errorf("got %d %q, want %d %q", status, got, want, test.want)
			}
			if dump := r.beneath.Dump(); strings.Contains(dump, "container") {
				t.Errorf("a container was created all the same:\n%s", dump)
			}
		})
	}
}

// TestQuirksName requires that the index lists every rule, and that every rule has a source.
func TestQuirksName(t *testing.T) {
	index, err := os.ReadFile("../../../../docs/design/windows-quirks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range slices.Concat(rules, startRules) {
		if rule.source == "" || !strings.Contains(string(index), "| "+rule.name+" |") {
			t.Errorf("docs/design/windows-quirks.md does not list the rule %q (source: %s)", rule.name, rule.source)
		}
	}
}

func TestIdentity(t *testing.T) {
	for build, want := range map[int][2]string{
		14393: {"1.30", "Microsoft Windows Server Version 1607 (OS Build 14393.7876)"},
		26100: {"1.51", "Microsoft Windows Server Version 24H2 (OS Build 26100.3476)"},
	} {
		r := newRig(t, build)
		var version, info map[string]any
		r.call("GET", "/version", nil, &version)
		r.call("GET", "/info", nil, &info)
		if version["ApiVersion"] != want[0] || version["Os"] != "windows" {
			t.Errorf("%d: /version says %v", build, version)
		}
		if info["OSType"] != "windows" || info["OperatingSystem"] != want[1] || info["Isolation"] != "process" || info["CgroupDriver"] != nil || info["Driver"] != "windowsfilter" {
			t.Errorf("%d: /info says %v", build, info)
		}
		if status, message := r.call("GET", "/v1.52/info", nil, nil); status != http.StatusBadRequest || !strings.Contains(message, "too new") {
			t.Errorf("%d: an API of the future: %d %s", build, status, message)
		}
	}
	if _, err := New(Options{Build: 9600}); err == nil {
		t.Error("a Windows that never was")
	}
	if _, err := New(Options{Build: 20348, Drive: "/nowhere"}); err == nil {
		t.Error("a drive that is not there")
	}
}

// TestContainer follows a container from create to its end: Windows for the client, Linux beneath.
func TestContainer(t *testing.T) {
	r := newRig(t, 20348)
	config := container.Config{WorkingDir: `C:\app`, User: "ContainerUser", Labels: map[string]string{"a": "b"}}
	host := container.HostConfig{Binds: []string{`C:\Data:C:\Var\Lib:ro`, `c:\program files:C:\pf`, `\\.\pipe\docker_engine:\\.\pipe\docker_engine`},
		SecurityOpt: []string{"credentialspec=raw://{}"}, Resources: container.Resources{NanoCPUs: 1e9, Memory: 64 << 20}}
	if status, message := r.create("web", config, host); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, message)
	}
	if status, message := r.call("POST", "/containers/web/start", nil, nil); status != http.StatusNoContent {
		t.Fatalf("start: %d %s", status, message)
	}
	var in container.InspectResponse
	r.call("GET", "/containers/web/json", nil, &in)
	if in.Config.User != "ContainerUser" || in.Config.WorkingDir != `C:\app` || in.HostConfig.Isolation != "process" || in.Platform != "windows" ||
		in.Config.Labels["a"] != "b" || in.Config.Labels[keptLabel] != "" || in.HostConfig.NetworkMode != "default" || in.NetworkSettings.Networks["nat"] == nil {
		t.Errorf("inspect shows %+v %+v %+v", in.Config, in.HostConfig, in.NetworkSettings.Networks)
	}
	if len(in.Mounts) != 3 || in.Mounts[0].Source != `c:\data` || in.Mounts[0].Destination != `c:\var\lib` || in.Mounts[0].RW || in.Mounts[2].Type != mount.TypeNamedPipe {
		t.Errorf("mounts are %+v", in.Mounts)
	}
	dump := r.beneath.Dump()
	for _, want := range []string{"container web running net=bridge", "bind " + r.Path(`C:\data`) + ":/Var/Lib:ro\n", "bind " + r.Path(`C:\PROGRAM FILES`) + ":/pf\n"} {
		if !strings.Contains(dump, want) {
			t.Errorf("beneath is no %q:\n%s", want, dump)
		}
	}
	var list []container.Summary
	r.call("GET", "/containers/json", nil, &list)
	if len(list) != 1 || list[0].Labels[keptLabel] != "" || list[0].HostConfig.NetworkMode != "nat" {
		t.Errorf("the list is %+v", list)
	}
	var stats container.StatsResponse
	r.call("GET", "/containers/web/stats?stream=0", nil, &stats)
	if stats.MemoryStats.Commit != 1<<20 || stats.MemoryStats.Usage != 0 || stats.CPUStats.SystemUsage != 0 || stats.NumProcs != 1 {
		t.Errorf("stats are %+v", stats)
	}
	for _, refusal := range []struct {
		method, path string
		body         any
		status       int
		want         string
	}{
		{"POST", "/containers/web/update", container.UpdateConfig{Resources: container.Resources{Memory: 1}}, 400, "Cannot update container web: resource updating isn't supported on Windows"},
		{"POST", "/containers/web/pause", nil, 500, "cannot pause container web: not implemented for containers using process isolation"},
		{"GET", "/containers/web/top?ps_args=aux", nil, 500, "Windows does not support arguments to top"},
	} {
		if status, got := r.call(refusal.method, refusal.path, refusal.body, nil); status != refusal.status || got != refusal.want {
			t.Errorf("%s: got %d %q, want %d %q", refusal.path, status, got, refusal.status, refusal.want)
		}
	}
	if faults := r.Faults(); len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
	if calls := r.Calls(); !slices.Contains(calls, "POST /containers/create 201") || !slices.Contains(calls, "POST /containers/web/pause 500") {
		t.Errorf("the log is %q", calls)
	}
}

func TestStart(t *testing.T) {
	for _, test := range []struct {
		name string
		host container.HostConfig
		want string
	}{
		{"security option", container.HostConfig{SecurityOpt: []string{"seccomp=unconfined"}}, "security option not supported: seccomp"},
		{"credential spec", container.HostConfig{SecurityOpt: []string{"credentialspec=x"}},
			"invalid credential spec security option - value must be prefixed by 'file://', 'registry://', or 'raw://' followed by a non-empty value"},
		{"credential spec of the registry", container.HostConfig{SecurityOpt: []string{"credentialspec=registry://None"}}, `credential spec "None" for container  as it was not found`},
		{"credential spec in a file", container.HostConfig{SecurityOpt: []string{`credentialspec=file://none.json`}}, `credential spec for container  could not be read from file "none.json"`},
		{"host network", container.HostConfig{NetworkMode: "host"}, "network host not found"},
		{"range of host ports", container.HostConfig{PortBindings: nat.PortMap{"80/tcp": {{HostPort: "1-2"}}}}, "Windows does not support more than one host port in NAT settings"},
		{"host address", container.HostConfig{PortBindings: nat.PortMap{"80/tcp": {{HostIP: "10.0.0.1", HostPort: "1"}}}}, "Windows does not support host IP addresses in NAT settings"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, 17763)
			if status, message := r.create("web", container.Config{}, test.host); status != http.StatusCreated {
				t.Fatalf("create: %d %s", status, message)
			}
			if status, got := r.call("POST", "/containers/web/start", nil, nil); status < 400 || got != test.want {
				t.Errorf("got %d %q, want %q", status, got, test.want)
			}
		})
	}
}

// TestCredentialSpec: which credential specs each engine accepts, and that they must exist when the container starts.
func TestCredentialSpec(t *testing.T) {
	for _, test := range []struct {
		build  int
		option string
		want   string // of the refusal; empty means that it starts
	}{
		{14393, "registry://Contoso", ""}, // the whole option is converted to lower case
		{14393, "registry://fabrikam", `credential spec "fabrikam" for container  as it was not found`},
		{14393, "raw://{}", "invalid credential spec security option - value must be prefixed file:// or registry:// followed by a value"},
		{17763, "registry://contoso", ""},
		{20348, "raw://{}", ""},
	} {
		r := newRig(t, test.build)
		if status, message := r.create("web", container.Config{}, container.HostConfig{SecurityOpt: []string{"credentialspec=" + test.option}}); status != http.StatusCreated {
			t.Fatalf("create: %d %s", status, message)
		}
		if status, got := r.call("POST", "/containers/web/start", nil, nil); (status < 400) != (test.want == "") || got != test.want {
			t.Errorf("%d, %s: %d %q, want %q", test.build, test.option, status, got, test.want)
		}
	}
}

func TestFaults(t *testing.T) {
	r := newRig(t, 20348)
	if status, message := r.create("web", container.Config{}, container.HostConfig{PidMode: "host", OomScoreAdj: 5}); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, message)
	}
	if status, _ := r.call("POST", "/containers/create", map[string]any{"Image": "web:1", "Nonsense": 1}, nil); status != http.StatusBadRequest {
		t.Errorf("an unknown field: %d", status)
	}
	if status, _ := r.call("GET", "/swarm", nil, nil); status != http.StatusNotFound {
		t.Errorf("an unknown call: %d", status)
	}
	want := []string{"create web: HostConfig.PidMode: Windows passes over it", "create web: HostConfig.OomScoreAdj: Windows passes over it",
		`POST /containers/create: json: unknown field "Nonsense"`, "GET /swarm: no such call"}
	if got := r.Faults(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("faults are %q, want %q", got, want)
	}
}

func TestNetworks(t *testing.T) {
	r := newRig(t, 20348)
	make := func(name, driver, subnet string) (int, string) {
		return r.call("POST", "/networks/create", network.CreateRequest{Name: name, CreateOptions: network.CreateOptions{Driver: driver, Options: map[string]string{"o": "1"},
			IPAM: &network.IPAM{Driver: "windows", Config: []network.IPAMConfig{{Subnet: subnet, Gateway: strings.Replace(subnet, "0/24", "1", 1)}}}}}, nil)
	}
	for _, test := range []struct {
		name, driver, subnet string
		status               int
		want                 string
	}{
		{"pods", "l2bridge", "10.244.3.0/24", 201, ""},
		{"pods", "l2bridge", "10.244.4.0/24", 409, "network with name pods already exists"},
		{"nat", "nat", "10.1.0.0/24", 403, "operation is not permitted on predefined nat network "},
		{"b", "bridge", "10.1.0.0/24", 404, "could not find plugin bridge in v1 plugin registry: plugin not found"},
		{"o", "overlay", "10.1.0.0/24", 403, `This node is not a swarm manager. Use "docker swarm init" or "docker swarm join" to connect this node to swarm and try again.`},
		{"six", "transparent", "fd00::/64", 500, "This request is not supported by null ipam driver"},
	} {
		if status, got := make(test.name, test.driver, test.subnet); status != test.status || got != test.want {
			t.Errorf("%s %s: got %d %q, want %d %q", test.name, test.driver, status, got, test.status, test.want)
		}
	}
	var list []network.Inspect
	r.call("GET", "/networks", nil, &list)
	names := []string{}
	for _, n := range list {
		names = append(names, n.Name+" "+n.Driver+" "+n.IPAM.Driver)
	}
	slices.Sort(names)
	if got := strings.Join(names, ", "); got != "nat nat windows, none null , pods l2bridge windows" {
		t.Errorf("networks are %s", got)
	}
	var pods network.Inspect
	r.call("GET", "/networks/pods", nil, &pods)
	if pods.Driver != "l2bridge" || pods.Options["o"] != "1" || pods.IPAM.Config[0].Gateway != "10.244.3.1" || len(pods.Labels) != 0 {
		t.Errorf("pods is %+v", pods)
	}
	if status, _ := r.call("GET", "/networks/host", nil, nil); status != http.StatusNotFound {
		t.Errorf("Windows has a network host: %d", status)
	}
	if status, _ := r.call("DELETE", "/networks/nat", nil, nil); status != http.StatusForbidden {
		t.Errorf("nat can be removed: %d", status)
	}
	if status, _ := r.call("DELETE", "/networks/pods", nil, nil); status != http.StatusNoContent {
		t.Errorf("pods cannot be removed: %d", status)
	}
}

func TestImageVersion(t *testing.T) {
	for _, test := range []struct {
		host      int
		image     string
		isolation container.Isolation
		fits      bool
	}{
		{14393, "10.0.14393.7876", "", true},
		{14393, "10.0.17763.1", "", false},
		{14393, "10.0.17763.1", "hyperv", false},
		{17763, "10.0.14393.1", "", false},
		{17763, "10.0.14393.1", "hyperv", true},
		{26100, "10.0.20348.1", "", true},
		{26100, "10.0.17763.1", "", false},
		{20348, "10.0.26100.1", "", false},
		{20348, "", "", true},
	} {
		t.Run(fmt.Sprintf("%s on %d %s", test.image, test.host, test.isolation), func(t *testing.T) {
			e := &Engine{opts: Options{Build: test.host, Isolation: container.IsolationProcess}}
			q := request{engine: e, Host: &container.HostConfig{Isolation: test.isolation}}
			if got := e.fits(test.image, q.hyperv()); got != test.fits {
				t.Errorf("got %v", got)
			}
		})
	}
}
