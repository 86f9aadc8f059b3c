// Package convert builds the engine's requests for a pod's sandboxes and containers. It does no I/O.
//
//	pod, step, Target (facts about engine and host) --Sandbox, Container--> Creation, the request
//
// An error means that the engine cannot do what the spec asks for, and says what would be valid.
package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/accounts"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Target describes the engine and its host.
type Target struct {
	Platform       pod.Platform
	Node           string // value of identity.LabelNode
	Boot           string // value of identity.LabelBoot; "": none
	API            string // negotiated version; "": newest
	CPUs           int    // as the engine counts them: Windows engines refuse a higher limit; 0: unknown
	HostCPUs       int    // of the host, which has more if there are several processor groups (Windows); 0: CPUs
	LogMaxSize     int64
	LogMaxFiles    int
	HyperV         bool // the engine's default isolation, used if the pod names none (Windows)
	CgroupParent   string
	MinOOMScoreAdj int // lower scores are raised to this
	// HostAddresses are the addresses at which a hostPort without hostIP is published; none: all of the host's.
	HostAddresses []netip.Addr
	// HostIPs are the addresses that a hostIP may name, besides loopback and unspecified ones; none: it may name any.
	HostIPs        []netip.Addr
	SeccompDefault bool // pods that name no profile get the engine's default profile
	// SeccompProfile is the content of the container's localhost profile; see LocalhostProfile.
	SeccompProfile string
	Hash           string             // of the container's spec
	Accounts       *accounts.Accounts // of the image; nil: not known
}

// Creation is the complete request for a new container.
type Creation struct {
	Name       string
	Config     *container.Config
	HostConfig *container.HostConfig
	// Files are copied into the container before it starts (Windows).
	Files []pod.File
	// CredentialSpec is the entry that the engine needs in the registry while the container starts; nil: none.
	CredentialSpec *CredentialSpec
}

// MinOOMScoreAdj is the lowest possible score. The sandbox gets upstream's -998: it should be killed last, since the whole pod ends with it.
const (
	MinOOMScoreAdj     = -1000
	sandboxOOMScoreAdj = -998
)

// Sandbox builds the request for the pod's sandbox from image. step.Sandbox must be set. It is pure.
func Sandbox(p *v1.Pod, step pod.Step, image string, t Target) (Creation, error) {
	out := creation(identity.ContainerName(p, identity.SandboxName, step.Attempt), podLabels(p, t.Node), t)
	out.Config.Labels[identity.LabelRestartCount] = strconv.Itoa(step.Attempt)
	out.Config.Image = image
	if err := joinNetwork(&out, p, step.Sandbox, t); err != nil {
		return Creation{}, err
	}
	h := out.HostConfig
	if step.Sandbox.Runtime != "" {
		out.Config.Labels[identity.LabelRuntime] = step.Sandbox.Runtime
	}
	if t.Platform.OS == "windows" {
		h.Isolation = isolation(p, step.Sandbox.Runtime, t)
		return out, nil
	}
	h.CgroupParent = cmp.Or(step.Sandbox.CgroupParent, t.CgroupParent)
	h.Runtime = step.Sandbox.Runtime
	h.OomScoreAdj = max(sandboxOOMScoreAdj, t.MinOOMScoreAdj)
	h.CPUShares = podspec.SharesOf(0)
	if !versions.LessThan(t.api(), "1.32") {
		h.IpcMode = container.IPCModeShareable // older engines have no such mode
	}
	hostNamespaces(h, p)
	if sc := p.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if h.NetworkMode == "none" && podspec.IsInterfaceSysctl(s.Name) { // the network's creator sets it
				continue
			}
			if h.Sysctls == nil {
				h.Sysctls = map[string]string{}
			}
			h.Sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
		}
		h.SecurityOpt = append(h.SecurityOpt, selinux(sc.SELinuxOptions)...)
	}
	h.SecurityOpt = append(h.SecurityOpt, sandboxSeccomp(p, t)...)
	return out, bindFiles(h, step.Sandbox.Files)
}

// Container builds the request for the container that step names. step.Inputs must be set. It is pure. An error means that the engine cannot do what
// the spec asks for, and says what would be valid.
func Container(p *v1.Pod, step pod.Step, t Target) (Creation, error) {
	c, in := Find(p, step), step.Inputs
	if c == nil {
		return Creation{}, fmt.Errorf("pod has no %s container %q", step.Kind, step.Container)
	}
	labels := podLabels(p, t.Node)
	maps.Copy(labels, map[string]string{
		identity.LabelType:          identity.TypeContainer,
		identity.LabelContainerName: c.Name,
		identity.LabelKind:          string(step.Kind),
		identity.LabelRestartCount:  strconv.Itoa(step.Attempt),
		identity.LabelHash:          t.Hash,
		identity.LabelImage:         c.Image,
		identity.LabelImageRef:      in.Image.Ref,
		identity.LabelMessage:       in.TerminationLog,
		identity.LabelMessagePath:   c.TerminationMessagePath,
		identity.LabelMessagePolicy: string(c.TerminationMessagePolicy),
	})
	if in.SandboxID != "" {
		labels[identity.LabelSandboxID] = in.SandboxID
	}
	if t.Boot != "" {
		labels[identity.LabelBoot] = t.Boot
	}
	if in.TerminationRoot != "" {
		labels[identity.LabelMessageRoot] = in.TerminationRoot
	}
	out := creation(identity.ContainerName(p, c.Name, step.Attempt), labels, t)
	config, h := out.Config, out.HostConfig
	config.Image = in.Image.ID
	config.Entrypoint, config.Cmd = in.Entrypoint, in.Args
	config.Env = environment(in.Env)
	config.WorkingDir = c.WorkingDir
	config.OpenStdin, config.StdinOnce, config.Tty = c.Stdin, c.StdinOnce, c.TTY
	if in.SandboxID != "" {
		// The sandbox's endpoint has the DNS servers, and an engine refuses them here (moby runconfig/hostconfig.go validateNetContainerMode). On
		// Windows each container has a search list (moby daemon/oci_windows.go, DNSSearchList).
		h.NetworkMode, h.DNSSearch = container.NetworkMode("container:"+in.SandboxID), in.Searches
	} else if err := joinNetwork(&out, p, in.Sandbox, t); err != nil {
		return Creation{}, err
	}
	if t.Platform.OS == "windows" {
		return out, convertWindows(&out, p, c, in, t)
	}
	if err := convertLinux(&out, p, c, in, t); err != nil {
		return Creation{}, err
	}
	if len(h.Mounts) > 0 && versions.LessThan(t.api(), "1.25") { // it would silently ignore them
		return Creation{}, fmt.Errorf("container %s: mount of %s at %s: engines older than API 1.25 do not accept a path with a colon, and this one has %s",
			c.Name, h.Mounts[0].Source, h.Mounts[0].Target, t.api())
	}
	return out, nil
}

// creation builds the common part of the requests for sandboxes and containers.
func creation(name string, labels map[string]string, t Target) Creation {
	out := Creation{
		Name:   name,
		Config: &container.Config{Labels: labels},
		// Only the agent restarts containers.
		HostConfig: &container.HostConfig{RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}},
	}
	out.HostConfig.LogConfig.Type = "json-file"
	if t.LogMaxSize > 0 {
		out.HostConfig.LogConfig.Config = map[string]string{"max-size": strconv.FormatInt(t.LogMaxSize, 10)}
		if t.LogMaxFiles > 0 {
			out.HostConfig.LogConfig.Config["max-file"] = strconv.Itoa(t.LogMaxFiles)
		}
	}
	return out
}

// podLabels are the labels of the pod's sandbox. Container adds more for a container.
func podLabels(p *v1.Pod, node string) map[string]string {
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	if p.Spec.TerminationGracePeriodSeconds != nil {
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	return map[string]string{
		identity.LabelNode:          node,
		identity.LabelPodName:       p.Name,
		identity.LabelPodNamespace:  p.Namespace,
		identity.LabelPodUID:        string(p.UID),
		identity.LabelType:          identity.TypeSandbox,
		identity.LabelContainerName: identity.SandboxName,
		identity.LabelGrace:         strconv.FormatInt(grace, 10),
	}
}

func (t Target) api() string {
	if t.API == "" {
		return "1.51"
	}
	return t.API
}

// Find returns the container of the spec that step names, or nil.
func Find(p *v1.Pod, step pod.Step) *v1.Container {
	switch step.Kind {
	case podspec.Init:
		return named(p.Spec.InitContainers, step.Container)
	case podspec.Ephemeral:
		for i := range p.Spec.EphemeralContainers {
			if c := &p.Spec.EphemeralContainers[i]; c.Name == step.Container {
				return (*v1.Container)(&c.EphemeralContainerCommon)
			}
		}
		return nil
	}
	return named(p.Spec.Containers, step.Container)
}

func named(list []v1.Container, name string) *v1.Container {
	i := slices.IndexFunc(list, func(c v1.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// environment removes duplicate names. The last value wins, at the position of the first.
func environment(env []pod.Env) []string {
	var out []string
	at := map[string]int{}
	for _, e := range env {
		line := e.Name + "=" + e.Value
		if i, ok := at[e.Name]; ok {
			out[i] = line
			continue
		}
		at[e.Name] = len(out)
		out = append(out, line)
	}
	return out
}

// joinNetwork makes out the owner of the pod's network: its hostname, resolver and hostPorts.
func joinNetwork(out *Creation, p *v1.Pod, in *pod.SandboxInputs, t Target) error {
	h := out.HostConfig
	h.NetworkMode = container.NetworkMode(in.Network)
	if in.Network == "host" { // IsHost of Docker's types always returns false in programs for Windows
		h.UTSMode = "host" // the host's network implies the host's name
		return nil
	}
	out.Config.Hostname = in.Hostname
	if t.Platform.OS == "windows" { // on Linux, resolv.conf is one of the Files
		h.DNS, h.DNSSearch, h.DNSOptions = in.DNS.Servers, in.DNS.Searches, in.DNS.Options
	}
	return publish(out, p, t)
}

// isolation is the pod's isolation; "" leaves it to the engine.
func isolation(p *v1.Pod, handler string, t Target) container.Isolation {
	isolation, _ := podspec.Isolation(p, handler, t.Platform.HyperVContainer)
	return container.Isolation(isolation)
}
