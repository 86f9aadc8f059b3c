// Package doctor finds faults in a host that is to become a node, and says how to fix each.
//
//	registry, service manager, /proc, engine, API server --> Symptoms --> Diagnose --> `kubelet doctor`
//
// Diagnose is pure. Package network/doctor finds faults in the pods' network.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/learn"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
	"github.com/winkube/winkube/pkg/otherproxy"
	"github.com/winkube/winkube/pkg/pod"
)

// Symptoms are the facts about a host. Collecting them changes nothing.
type Symptoms struct {
	Platform  pod.Platform
	Facts     host.Facts
	Elevated  bool
	Engine    docker.Info
	EngineErr error
	// CgroupDriver is that of the kubelet's configuration; "": none.
	CgroupDriver string
	// Infra is the image of sandboxes; InfraErr says why it is missing.
	InfraName string
	Infra     pod.Image
	InfraErr  error
	// Left are the names of containers that another kubelet made for pods.
	Left   []string
	Disks  []Disk
	Server Server
	// Cluster has the settings from flags and the cluster; Network has the findings about this host's network.
	Cluster []learn.Line
	Network []netdoctor.Finding
	Other   otherproxy.Found // rules of another kube-proxy
	// Services of Windows by name: "RUNNING", "STOPPED", ...; "" if the service does not exist.
	Services map[string]string
	// Controllers are the kernel's enabled cgroup controllers; Linux.
	Controllers []string
	Unread      []string // what could not be read, and why
}

// Disk is a file system and its use.
type Disk struct {
	What, Path string
	host.Disk
}

// Server is the API server's answer.
type Server struct {
	Asked   bool // there is a kubeconfig
	Err     error
	Version string        // v1.36.3
	Ahead   time.Duration // of its clock relative to ours
	Ours    string        // the version that this program is built from
}

// Limits that the doctor accepts. Certificates and leases tolerate a clock difference of a few seconds.
const (
	oldestBuild = 14393 // Windows Server 2016: the first with containers
	clockSlack  = 10 * time.Second
	freePercent = 15 // upstream's threshold for image file systems
)

// Diagnose returns good and bad findings.
func Diagnose(s Symptoms) (out []netdoctor.Finding) {
	out = append(out, system(s), elevation(s))
	if s.Platform.OS == "windows" {
		out = append(out, features(s)...)
	} else {
		out = append(out, controllers(s))
	}
	out = append(out, engine(s)...)
	if len(s.Left) > 0 {
		out = append(out, left(s.Left))
	}
	for _, d := range s.Disks {
		out = append(out, disk(d))
	}
	out = append(out, server(s.Server)...)
	for _, line := range s.Cluster {
		out = append(out, netdoctor.Finding{Fault: line.Fix != "", What: line.String(), Fix: line.Fix})
	}
	for _, u := range s.Unread {
		out = append(out, unread(u))
	}
	return append(append(out, s.Network...), otherProxy(s.Other)...)
}

// otherProxy is one row, and another if something could not be read.
func otherProxy(found otherproxy.Found) (out []netdoctor.Finding) {
	switch {
	case len(found.Traces) > 0:
		out = append(out, fault(found.Fix, "%s", found.What()))
	case len(found.Unread) == 0:
		out = append(out, good("%s", found.What()))
	}
	if len(found.Unread) > 0 {
		out = append(out, unread(strings.Join(found.Unread, "; ")))
	}
	return out
}

func unread(what string) netdoctor.Finding {
	return fault("run this as administrator (root), or check it manually", "cannot read %s", what)
}

func good(format string, args ...any) netdoctor.Finding {
	return netdoctor.Finding{What: fmt.Sprintf(format, args...)}
}

func fault(fix, format string, args ...any) netdoctor.Finding {
	return netdoctor.Finding{Fault: true, What: fmt.Sprintf(format, args...), Fix: fix}
}

func system(s Symptoms) netdoctor.Finding {
	if s.Platform.OS == "windows" && s.Platform.Build < oldestBuild {
		return fault("use Windows Server 2016 (build 14393) or later", "this is %s, build %d, which has no containers", s.Facts.OSImage, s.Platform.Build)
	}
	return good("this is %s, %s, with %d processors and %d GiB of memory", s.Facts.OSImage, s.Facts.KernelVersion, s.Facts.CPUs, s.Facts.Memory>>30)
}

func elevation(s Symptoms) netdoctor.Finding {
	if s.Elevated {
		return good("this runs as administrator (root)")
	}
	return fault(`run kubelet, proxy and this as root, on Windows from a PowerShell opened by "Run as administrator"`, "this runs without the rights of an administrator")
}

// features detects features by their services: Windows offers programs no other quick way.
func features(s Symptoms) (out []netdoctor.Finding) {
	missing := false
	for _, name := range []string{"vmcompute", "hns"} {
		missing = missing || s.Services[name] == ""
	}
	switch {
	case missing:
		out = append(out, fault("Install-WindowsFeature Containers; Restart-Computer", "the feature Containers is not installed: there is no service vmcompute or hns"))
	case s.Services["hns"] != "RUNNING":
		out = append(out, fault("Start-Service hns", "the Host Networking Service (hns) is %s: no pod gets a network", strings.ToLower(s.Services["hns"])))
	default:
		out = append(out, good("the feature Containers is installed, the Host Networking Service runs"))
	}
	if s.Services["vmms"] != "" {
		out = append(out, good("the feature Hyper-V is installed: pods can have Hyper-V isolation"))
	} else {
		out = append(out, good("the feature Hyper-V is not installed: pods have process isolation (Install-WindowsFeature Hyper-V installs it)"))
	}
	switch state := s.Services["docker"]; {
	case state == "" && s.EngineErr != nil:
		out = append(out, fault("install Docker Engine for Windows Server, or give --docker-endpoint", "there is no service docker"))
	case state != "" && state != "RUNNING":
		out = append(out, fault("Start-Service docker"+versions(s), "the service docker is %s", strings.ToLower(state)))
	}
	if state := s.Services["w32time"]; state != "RUNNING" {
		out = append(out, fault("Set-Service w32time -StartupType Automatic; Start-Service w32time", "nothing sets the clock: the service w32time does not run"))
	}
	return out
}

// versions says which Docker supports an older Windows: since 23 it needs build 17763 (moby#43254).
func versions(s Symptoms) string {
	if s.Platform.Build >= 17763 {
		return ""
	}
	return fmt.Sprintf("; on build %d Docker 17.06 to 20.10, because later ones do not start", s.Platform.Build)
}

func controllers(s Symptoms) netdoctor.Finding {
	var missing []string
	for _, name := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(s.Controllers, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fault("boot with cgroup_enable=memory, or a kernel that has them; with cgroups v2 see /sys/fs/cgroup/cgroup.subtree_control", "the kernel has no cgroup controller %s: pods' limits are not enforced", strings.Join(missing, ", "))
	}
	return good("the kernel has the cgroup controllers cpu, memory and pids")
}

func engine(s Symptoms) (out []netdoctor.Finding) {
	e, faults := s.Engine, docker.Faults(s.Engine, s.EngineErr, s.CgroupDriver)
	restart, linux := "systemctl start docker", s.Platform.OS == "linux"
	if !linux {
		restart = "Start-Service docker; else see Get-EventLog Application -Source docker -Newest 20" + versions(s)
	}
	switch {
	case e.OS != "" && e.OS != s.Platform.OS:
		return []netdoctor.Finding{fault(`& "$env:ProgramFiles\Docker\Docker\DockerCli.exe" -SwitchWindowsEngine`, "Docker runs containers of %s, and this is a host of %s", e.OS, s.Platform.OS)}
	case s.EngineErr != nil && !linux && s.Services["docker"] != "RUNNING":
		return nil // the finding about the service covers this
	case s.EngineErr != nil && len(faults) > 0:
		return engineFaults(faults)
	case s.EngineErr != nil:
		return []netdoctor.Finding{fault(restart, "Docker returned an error: %v", oneLine(s.EngineErr))}
	}
	if len(faults) == 0 || faults[0].Reason != docker.TooOld {
		out = append(out, good("Docker %s answers, API %s, storage driver %s", e.Version, e.APIVersion, e.StorageDriver))
	}
	out = append(out, engineFaults(faults)...)
	if linux {
		out = append(out, speed(e)...)
	}
	if linux && !e.LiveRestore {
		out = append(out, fault(`"live-restore": true in /etc/docker/daemon.json, then systemctl reload docker`, "containers end whenever Docker restarts, as with each update: live-restore is off"))
	}
	switch {
	case !s.Platform.SharedNetwork || s.InfraName == "":
	case s.InfraErr != nil:
		out = append(out, fault("build it for this host as build/pause/Dockerfile says, or docker pull it; --pod-infra-container-image names another", "the pause image %s is missing: %v", s.InfraName, oneLine(s.InfraErr)))
	default:
		if err := pod.CheckImageFits(s.InfraName, s.Infra, s.Platform, e.Isolation == "hyperv"); err != nil {
			out = append(out, fault("build/pause/Dockerfile for this host's build", "%v", err))
		} else {
			out = append(out, good("the pause image %s exists and fits this host", s.InfraName))
		}
	}
	return out
}

func engineFaults(faults []docker.Fault) (out []netdoctor.Finding) {
	for _, f := range faults {
		out = append(out, fault(f.Fix, "%s", f.What))
	}
	return out
}

// removeLeft removes the containers that other kubelets made for pods.
const removeLeft = `docker ps -a --filter label=io.kubernetes.pod.uid --format '{{if not (.Label "io.winkube.node")}}{{.ID}}{{end}}' | xargs docker rm -f`

// left is about the containers of another kubelet. Those of pods that were drained are gone.
func left(names []string) netdoctor.Finding {
	shown := strings.Join(names[:min(len(names), 3)], ", ")
	if len(names) > 3 {
		shown += " and others"
	}
	return fault("drain the node while the other kubelet runs; else stop that kubelet, then "+removeLeft,
		"Docker has %d containers that another kubelet made for pods: %s. This one does not end them, and their pods cannot start here meanwhile", len(names), shown)
}

func disk(d Disk) netdoctor.Finding {
	percent := uint64(100)
	if d.Capacity > 0 {
		percent = d.Available * 100 / d.Capacity
	}
	if percent < freePercent {
		return fault("docker image prune, or a larger disk", "%d%% of the disk is free at %s, %s: below %d%% images are deleted and pods evicted", percent, d.Path, d.What, freePercent)
	}
	return good("%d%% of the disk is free at %s, %s", percent, d.Path, d.What)
}

func server(s Server) (out []netdoctor.Finding) {
	switch {
	case !s.Asked:
		return []netdoctor.Finding{good("the API server was not asked: give --kubeconfig to compare clocks and versions")}
	case s.Err != nil:
		return []netdoctor.Finding{fault("check that the address in the kubeconfig can be reached from here and that its certificates are valid", "the API server does not answer: %v", oneLine(s.Err))}
	case s.Ahead.Abs() > clockSlack:
		out = append(out, fault("set the clock (w32tm /resync, chronyc makestep)", "this host's clock differs by %s from the API server's: certificates and leases are not valid", s.Ahead.Abs().Round(time.Second)))
	default:
		out = append(out, good("the clock agrees with the API server's"))
	}
	switch err := kubeclient.CheckSkew(s.Version, s.Ours); {
	case errors.Is(err, kubeclient.ErrNoVersion):
		out = append(out, fault("check what answers at the kubeconfig's address", "%v", err))
	case err != nil:
		out = append(out, fault("upgrade the older of the two", "%v", err))
	default:
		out = append(out, good("the API server has version %s, and this program has %s", s.Version, s.Ours))
	}
	return out
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Examine reads services or cgroup controllers. The caller sets s.Platform and all other fields.
func Examine(ctx context.Context, s *Symptoms, run command.Runner) {
	if s.Platform.OS == "windows" {
		s.Services = map[string]string{}
		for _, name := range []string{"docker", "hns", "vmcompute", "vmms", "w32time"} {
			out, _ := run.Run(ctx, nil, "sc.exe", "query", name) // fails if there is no such service
			s.Services[name] = parseService(string(out))
		}
		return
	}
	var err error
	if s.Controllers, err = controllersOf(os.DirFS("/")); err != nil {
		s.Unread = append(s.Unread, "the cgroup controllers: "+err.Error())
	}
}

// controllersOf reads the kernel's enabled cgroup controllers. root is the host's root directory. On a host with cgroup v2 they are not all in
// /proc/cgroups: a kernel without CONFIG_MEMCG_V1 or CONFIG_CPUSETS_V1 omits memory and cpuset there.
func controllersOf(root fs.FS) ([]string, error) {
	text, err := fs.ReadFile(root, "sys/fs/cgroup/cgroup.controllers")
	if err == nil {
		return strings.Fields(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err = fs.ReadFile(root, "proc/cgroups")
	return parseControllers(string(text)), err
}

// parseService reads the state in `sc.exe query NAME`: a line with a number and the state's name, which are the same in every language.
func parseService(text string) string {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		for i, field := range fields {
			if field == ":" && i+2 < len(fields) && slices.Contains(states, fields[i+2]) {
				return fields[i+2]
			}
		}
	}
	return ""
}

var states = []string{"STOPPED", "START_PENDING", "STOP_PENDING", "RUNNING", "CONTINUE_PENDING", "PAUSE_PENDING", "PAUSED"}

// parseControllers reads /proc/cgroups (cgroups(7)): name, hierarchy, number, enabled.
func parseControllers(text string) (names []string) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[3] == "1" {
			names = append(names, fields[0])
		}
	}
	return names
}
