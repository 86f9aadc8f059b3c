package doctor

import (
	"errors"
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/host"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
	"github.com/winkube/winkube/pkg/otherproxy"
	"github.com/winkube/winkube/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sound is a host without faults.
func sound(system string) Symptoms {
	s := Symptoms{
		Platform: pod.Platform{OS: system, Arch: "amd64", SharedNetwork: true},
		Facts:    host.Facts{OSImage: "Debian GNU/Linux 12 (bookworm)", KernelVersion: "6.1.0-18-amd64", CPUs: 4, Memory: 16 << 30},
		Elevated: true, InfraName: "pause:1", Infra: pod.Image{OS: system},
		Engine:      docker.Info{Version: "27.1.0", APIVersion: "1.46", OS: system, StorageDriver: "overlay2", LiveRestore: true},
		Disks:       []Disk{{What: "the agent's directory", Path: "/var/lib/kubelet", Disk: host.Disk{Capacity: 100, Available: 60}}},
		Server:      Server{Asked: true, Version: "v1.36.3", Ours: "v1.36.3", Ahead: 2 * time.Second},
		Controllers: []string{"cpu", "memory", "pids"},
		Network:     []netdoctor.Finding{{What: "no fault found in the network"}},
	}
	if system == "windows" {
		s.Platform.Build = 20348
		s.Facts.OSImage, s.Facts.KernelVersion = "Windows Server 2022 Datacenter", "10.0.20348.2700"
		s.Infra.OSVersion, s.Engine.StorageDriver, s.Engine.LiveRestore = "10.0.20348.2582", "windowsfilter", false
		s.Services = map[string]string{"docker": "RUNNING", "hns": "RUNNING", "vmcompute": "RUNNING", "w32time": "RUNNING"}
	}
	return s
}

func text(s Symptoms) string {
	var b strings.Builder
	for _, f := range Diagnose(s) {
		b.WriteString(f.String())
	}
	return b.String()
}

// TestSound: a sound host has no fault, as the golden files show.
func TestSound(t *testing.T) {
	for _, system := range []string{"linux", "windows"} {
		got, path := text(sound(system)), filepath.Join("testdata", system+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || got != strings.ReplaceAll(string(want), "\r\n", "\n") || strings.Contains(got, "FAULT") {
			t.Errorf("%s: %v; got\n%s", path, err, got)
		}
	}
}

// TestFaults: each fault is one line with the problem and the remedy.
func TestFaults(t *testing.T) {
	for _, test := range []struct {
		name, system string
		change       func(*Symptoms)
		what, fix    string
	}{
		{"an old Windows", "windows", func(s *Symptoms) { s.Platform.Build, s.Infra.OSVersion = 9600, "" }, "build 9600, which has no containers", "Windows Server 2016"},
		{"no feature", "windows", func(s *Symptoms) { delete(s.Services, "hns"); delete(s.Services, "vmcompute") }, "the feature Containers is not installed", "Install-WindowsFeature Containers"},
		{"HNS stopped", "windows", func(s *Symptoms) { s.Services["hns"] = "STOPPED" }, "(hns) is stopped", "Start-Service hns"},
		{"Docker stopped", "windows", func(s *Symptoms) { s.Services["docker"] = "STOPPED" }, "the service docker is stopped", "Start-Service docker"},
		{"Docker stopped on Server 2016", "windows", func(s *Symptoms) {
			s.Platform.Build, s.Platform.SharedNetwork, s.Services["docker"] = 14393, false, "STOPPED"
		}, "the service docker is stopped", "Docker 17.06 to 20.10"},
		{"Docker is silent on Server 2016", "windows", func(s *Symptoms) {
			s.Platform.Build, s.Platform.SharedNetwork, s.EngineErr = 14393, false, errors.New("no pipe")
		}, "returned an error: no pipe", "later ones do not start"},
		{"no Docker", "windows", func(s *Symptoms) {
			delete(s.Services, "docker")
			s.Engine, s.EngineErr = docker.Info{}, errors.New("no pipe")
		}, "there is no service docker", "install Docker Engine"},
		{"Docker Desktop", "windows", func(s *Symptoms) { s.Engine.OS, s.EngineErr = "linux", errors.New("other") }, "Docker runs containers of linux", "-SwitchWindowsEngine"},
		{"rubbish", "windows", func(s *Symptoms) { s.Engine, s.EngineErr = docker.Info{}, errors.New("malformed\nHTTP response") }, "returned an error: malformed HTTP response", "Start-Service docker"},
		{"old Docker", "windows", func(s *Symptoms) { s.Engine.Version, s.Engine.APIVersion = "17.03.2-ce", "1.27" }, "Docker 17.03.2-ce is older than 17.06", "later Docker"},
		{"new Docker", "linux", func(s *Symptoms) { s.EngineErr = errTooNew(t) }, "too new: it accepts no API version before 1.60", "an older Docker, or a newer kubelet"},
		{"no runtime", "linux", func(s *Symptoms) { s.Engine.DefaultRuntime = docker.Runtime{Name: "crun", Missing: true} }, "cannot run its default runtime crun", "install crun"},
		{"another cgroup driver", "linux", func(s *Symptoms) { s.Engine.CgroupDriver, s.CgroupDriver = "cgroupfs", "systemd" },
			"cgroup driver is cgroupfs, and the kubelet's configuration has cgroupDriver: systemd", "native.cgroupdriver=systemd"},
		{"no clock", "windows", func(s *Symptoms) { s.Services["w32time"] = "STOPPED" }, "w32time does not run", "Start-Service w32time"},
		{"pause for another build", "windows", func(s *Symptoms) { s.Infra.OSVersion = "10.0.17763.1" }, "image pause:1 is for Windows build 17763", "build/pause/Dockerfile"},
		{"no pause", "linux", func(s *Symptoms) { s.InfraErr = errors.New("no such image") }, "pause image pause:1 is missing", "docker pull"},
		{"no rights", "linux", func(s *Symptoms) { s.Elevated = false }, "without the rights", "as root"},
		{"live-restore", "linux", func(s *Symptoms) { s.Engine.LiveRestore = false }, "live-restore is off", `"live-restore": true`},
		{"no memory cgroup", "linux", func(s *Symptoms) { s.Controllers = []string{"cpu", "pids"} }, "no cgroup controller memory", "cgroup_enable=memory"},
		{"another kubelet's containers", "linux", func(s *Symptoms) { s.Left = []string{"k8s_POD_a", "k8s_c_a", "k8s_POD_b", "k8s_c_b"} }, "4 containers that another kubelet made for pods: k8s_POD_a, k8s_c_a, k8s_POD_b and others. This", "docker rm -f"},
		{"full disk", "linux", func(s *Symptoms) { s.Disks[0].Available = 14 }, "14% of the disk is free at /var/lib/kubelet", "docker image prune"},
		{"clock", "linux", func(s *Symptoms) { s.Server.Ahead = -3 * time.Minute }, "differs by 3m0s", "set the clock"},
		{"no server", "linux", func(s *Symptoms) { s.Server.Err = errors.New("connection refused") }, "does not answer: connection refused", "kubeconfig"},
		{"an old server", "linux", func(s *Symptoms) { s.Server.Version = "v1.35.9" }, "has version v1.35.9, and this program has v1.36.3: a node may be up to three minor versions older than its API server, never newer", "upgrade the older"},
		{"a new server", "linux", func(s *Symptoms) { s.Server.Version = "v1.40.0" }, "has version v1.40.0, and this program has v1.36.3: ", "upgrade the older"},
		{"no server at all", "linux", func(s *Symptoms) { s.Server.Version = "" }, `version is ""`, "check what answers"},
		{"kube-proxy's rules", "linux", func(s *Symptoms) {
			s.Other = otherproxy.Found{Traces: []string{"3 rules of iptables-legacy", "table ip kube-proxy of nftables"}, Fix: "kube-proxy --cleanup"}
		}, "before winkube's proxy sees them: 3 rules of iptables-legacy, table ip kube-proxy of nftables", "kube-proxy --cleanup"},
		{"kube-proxy's load balancers", "windows", func(s *Symptoms) {
			s.Other = otherproxy.Found{Traces: []string{"1 load balancer of HNS at 10.96.0.1:443"}, Fix: "hnsdiag delete loadbalancers ID"}
		}, "1 load balancer of HNS at 10.96.0.1:443", "hnsdiag delete loadbalancers ID"},
		{"kube-proxy's rules unread", "linux", func(s *Symptoms) { s.Other.Unread = []string{"rules of kube-proxy: denied", "x"} }, "cannot read rules of kube-proxy: denied; x", "as administrator"},
		{"unread", "linux", func(s *Symptoms) { s.Unread = []string{"x: denied"} }, "cannot read x: denied", "as administrator"},
	} {
		s := sound(test.system)
		test.change(&s)
		got := text(s)
		_, rest, _ := strings.Cut(got, "FAULT  ")
		if what, fix, _ := strings.Cut(rest, "\n       fix: "); strings.Count(got, "FAULT") != 1 || !strings.Contains(what, test.what) || !strings.Contains(fix, test.fix) {
			t.Errorf("%s: want one fault, %q fixed by %q; got\n%s", test.name, test.what, test.fix, got)
		}
	}
	s := sound("linux")
	if s.Server = (Server{}); strings.Contains(text(s), "FAULT") || !strings.Contains(text(s), "give --kubeconfig") {
		t.Errorf("the server was not asked:\n%s", text(s))
	}
}

// TestNamelessDocker: a developer build's version does not make it older than its API version.
func TestNamelessDocker(t *testing.T) {
	for _, version := range []string{"0.0.0-dev", "dev", "library-import", ""} {
		s := sound("linux")
		s.Engine.Version, s.Engine.APIVersion = version, "1.51"
		if got := text(s); strings.Contains(got, "FAULT") || !strings.Contains(got, "answers, API 1.51") {
			t.Errorf("version %q:\n%s", version, got)
		}
	}
}

func TestParse(t *testing.T) {
	query := "\r\nSERVICE_NAME: hns \r\n        TYPE               : 20  WIN32_SHARE_PROCESS  \r\n        STATE              : 4  RUNNING \r\n                                (STOPPABLE)\r\n"
	for in, want := range map[string]string{query: "RUNNING", strings.Replace(query, "STATE              : 4  RUNNING", "STATUS             : 1  STOPPED", 1): "STOPPED", "[SC] EnumQueryServicesStatus:OpenService FAILED 1060:\r\n": "", "": ""} {
		if got := parseService(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := parseControllers("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t9\t1\nmemory\t0\t9\t0\npids\t1\t2\t1\n"); strings.Join(got, " ") != "cpu pids" {
		t.Errorf("controllers %q", got)
	}
}

// TestControllers: a host with cgroup v2 has the controllers that its hierarchy lists, whatever is in /proc/cgroups.
func TestControllers(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	legacy := file("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t9\t1\npids\t0\t2\t1\n")
	for name, test := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"v2, a kernel without CONFIG_MEMCG_V1": {fstest.MapFS{"proc/cgroups": legacy, "sys/fs/cgroup/cgroup.controllers": file("cpuset cpu io memory pids\n")}, "cpuset cpu io memory pids"},
		"v2, memory disabled at boot":          {fstest.MapFS{"proc/cgroups": legacy, "sys/fs/cgroup/cgroup.controllers": file("cpu pids\n")}, "cpu pids"},
		"v1":                                   {fstest.MapFS{"proc/cgroups": legacy, "sys/fs/cgroup/unified/cgroup.controllers": file("\n")}, "cpu pids"},
	} {
		if got, err := controllersOf(test.files); err != nil || strings.Join(got, " ") != test.want {
			t.Errorf("%s: controllers %q, %v; want %q", name, got, err, test.want)
		}
	}
	if got, err := controllersOf(fstest.MapFS{}); err == nil {
		t.Errorf("no cgroups: %q without an error", got)
	}
}

// errTooNew is the error of an engine that refuses all our API versions.
func errTooNew(t *testing.T) error {
	fake := dockertest.New(dockertest.Options{Version: "31.0.0", APIVersion: "1.64", MinAPIVersion: "1.60"})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	e, err := docker.New(docker.Config{Host: "tcp://" + server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Client.Info(t.Context()); err == nil {
		t.Fatal("an engine that is too new answers")
	}
	return err
}

func TestExamine(t *testing.T) {
	run := commandtest.New()
	run.Script("sc.exe query docker", commandtest.Answer{Stdout: "        STATE              : 1  STOPPED \r\n"})
	run.Script("sc.exe query hns", commandtest.Answer{Stdout: "        STATE              : 4  RUNNING \r\n"})
	run.Install("sc.exe", func([]byte, []string) ([]byte, error) { return nil, commandtest.Exit(36, "1060") })
	s := Symptoms{Platform: pod.Platform{OS: "windows"}}
	Examine(t.Context(), &s, run)
	if s.Services["docker"] != "STOPPED" || s.Services["hns"] != "RUNNING" || s.Services["vmms"] != "" || len(s.Services) != 5 {
		t.Errorf("services are %v", s.Services)
	}
}
