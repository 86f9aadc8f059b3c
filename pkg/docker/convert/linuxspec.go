package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/versions"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// shimGroup is the OCI annotation that has a container served by the shim of another, whose id is its value, if that runs: the shim listens at an
// address made from the group, without one from the id (containerd cmd/containerd-shim-runc-v2/manager). Engines pass annotations on from API 1.43,
// Docker 24.
const (
	shimGroup       = "io.containerd.runc.v2.group"
	withAnnotations = "1.43"
)

// convertLinux adds the fields that only Linux engines have.
func convertLinux(out *Creation, p *v1.Pod, c *v1.Container, in *pod.Inputs, t Target) error {
	h := out.HostConfig
	h.CgroupParent = cmp.Or(in.CgroupParent, t.CgroupParent)
	h.Runtime = in.Runtime
	h.OomScoreAdj = max(in.OOMScoreAdj, t.MinOOMScoreAdj)
	want := podspec.ResourcesOf(p, c)
	LinuxResources(&h.Resources, want)
	out.Config.Labels[identity.LabelResources] = want.String()
	if h.NetworkMode.IsContainer() {
		if !versions.LessThan(t.api(), withAnnotations) {
			h.Annotations = map[string]string{shimGroup: in.SandboxID}
		}
		sandbox := "container:" + in.SandboxID
		h.IpcMode = container.IpcMode(sandbox)
		if share := p.Spec.ShareProcessNamespace; share != nil && *share {
			h.PidMode = container.PidMode(sandbox)
		} else if in.TargetID != "" {
			h.PidMode = container.PidMode("container:" + in.TargetID)
		}
		if p.Spec.HostNetwork {
			h.UTSMode = "host"
		}
	}
	hostNamespaces(h, p)
	applyUser(out, chooseUser(p, c, in.Image.User, t.Accounts))
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		out.Config.StopSignal = string(*c.Lifecycle.StopSignal)
	}
	if err := confine(h, p, c, t); err != nil {
		return err
	}
	explicit := !versions.LessThan(t.api(), "1.44")
	for _, m := range in.Mounts {
		if err := bind(h, m, explicit); err != nil {
			return err
		}
		if m.Recursive {
			out.Config.Labels[identity.LabelRecursive] = "true"
		}
	}
	for _, d := range in.Devices {
		access := "rwm"
		if d.ReadOnly {
			access = "rm"
		}
		h.Devices = append(h.Devices, container.DeviceMapping{PathOnHost: d.HostPath, PathInContainer: d.ContainerPath, CgroupPermissions: access})
	}
	files := in.Files
	if in.TerminationLog != "" {
		target := c.TerminationMessagePath
		if target == "" {
			target = v1.TerminationMessagePathDefault
		}
		files = append(slices.Clone(files), pod.File{HostPath: in.TerminationLog, ContainerPath: target})
	}
	return bindFiles(h, files)
}

func applyUser(out *Creation, chosen chosenUser) {
	out.Config.User = chosen.user
	for _, gid := range chosen.groups {
		out.HostConfig.GroupAdd = append(out.HostConfig.GroupAdd, strconv.FormatInt(gid, 10))
	}
	if chosen.who != nil {
		out.Config.Labels[identity.LabelUser] = identity.FormatUser(chosen.who)
	}
}

// hostNamespaces adds the host namespaces that the pod requests, except the network.
func hostNamespaces(h *container.HostConfig, p *v1.Pod) {
	if p.Spec.HostPID {
		h.PidMode = "host"
	}
	if p.Spec.HostIPC {
		h.IpcMode = container.IPCModeHost
	}
}

// LinuxResources sets quota and shares, not NanoCPUs, and a swap limit with the memory limit. Otherwise the engine could not change them while the
// container runs.
func LinuxResources(r *container.Resources, want podspec.Resources) {
	r.CPUShares, r.CPUQuota, r.CPUPeriod = want.Shares, want.Quota, want.Period
	r.Memory, r.MemorySwap = want.Memory, want.Memory // no swap
}

// user is uid[:gid] of the container; "" leaves it to the image. A group without a user is combined with the image's user, or root if the image has
// none.
func user(p *v1.Pod, c *v1.Container, image string) string {
	var uid, gid *int64
	if sc := p.Spec.SecurityContext; sc != nil {
		uid, gid = sc.RunAsUser, sc.RunAsGroup
	}
	if sc := c.SecurityContext; sc != nil {
		if sc.RunAsUser != nil {
			uid = sc.RunAsUser
		}
		if sc.RunAsGroup != nil {
			gid = sc.RunAsGroup
		}
	}
	var name string
	switch {
	case uid != nil:
		name = strconv.FormatInt(*uid, 10)
	case gid == nil:
		return ""
	default:
		name, _, _ = strings.Cut(image, ":")
		if name == "" {
			name = "0"
		}
	}
	if gid != nil {
		name += ":" + strconv.FormatInt(*gid, 10)
	}
	return name
}

// confine sets capabilities, security profiles and all other restrictions of the container.
func confine(h *container.HostConfig, p *v1.Pod, c *v1.Container, t Target) error {
	sc := c.SecurityContext
	if sc == nil {
		sc = &v1.SecurityContext{}
	}
	h.Privileged = sc.Privileged != nil && *sc.Privileged
	h.ReadonlyRootfs = sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem
	if caps := sc.Capabilities; caps != nil {
		h.CapAdd, h.CapDrop = capabilities(caps.Add), capabilities(caps.Drop)
	}
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		h.SecurityOpt = append(h.SecurityOpt, "no-new-privileges")
	}
	options := sc.SELinuxOptions
	if options == nil && p.Spec.SecurityContext != nil {
		options = p.Spec.SecurityContext.SELinuxOptions
	}
	h.SecurityOpt = append(h.SecurityOpt, selinux(options)...)
	if sc.ProcMount != nil && *sc.ProcMount == v1.UnmaskedProcMount {
		h.MaskedPaths, h.ReadonlyPaths = []string{}, []string{} // nil would mean the engine's default
	}
	if h.Privileged {
		return nil // the engine ignores all restrictions of a privileged container
	}
	profile, err := seccomp(p, c, t)
	if err != nil {
		return err
	}
	h.SecurityOpt = append(h.SecurityOpt, profile...)
	profile, err = apparmor(p, c)
	h.SecurityOpt = append(h.SecurityOpt, profile...)
	return err
}

func capabilities(list []v1.Capability) []string {
	var out []string
	for _, c := range list {
		out = append(out, strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_"))
	}
	return out
}

func selinux(o *v1.SELinuxOptions) []string {
	if o == nil {
		return nil
	}
	var out []string
	for _, part := range [][2]string{{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level}} {
		if part[1] != "" {
			out = append(out, "label="+part[0]+":"+part[1])
		}
	}
	return out
}

// seccompProfile is the container's profile, or the pod's; nil: neither has one.
func seccompProfile(p *v1.Pod, c *v1.Container) *v1.SeccompProfile {
	if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
		return c.SecurityContext.SeccompProfile
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.SeccompProfile
	}
	return nil
}

// LocalhostProfile names the file under Config.SeccompRoot whose content belongs into Target.SeccompProfile; "": none.
func LocalhostProfile(p *v1.Pod, c *v1.Container) string {
	profile := seccompProfile(p, c)
	if profile == nil || profile.Type != v1.SeccompProfileTypeLocalhost || profile.LocalhostProfile == nil {
		return ""
	}
	return *profile.LocalhostProfile
}

func seccomp(p *v1.Pod, c *v1.Container, t Target) ([]string, error) {
	profile := seccompProfile(p, c)
	switch {
	case profile == nil && t.SeccompDefault:
		return nil, nil
	case profile == nil, profile.Type == v1.SeccompProfileTypeUnconfined:
		return []string{"seccomp=unconfined"}, nil
	case profile.Type == v1.SeccompProfileTypeRuntimeDefault:
		return nil, nil
	case profile.Type == v1.SeccompProfileTypeLocalhost && LocalhostProfile(p, c) != "":
		return []string{"seccomp=" + t.SeccompProfile}, nil
	}
	return nil, fmt.Errorf("container %s: seccompProfile %q: must be Unconfined, RuntimeDefault, or Localhost with a localhostProfile", c.Name, profile.Type)
}

// sandboxSeccomp restricts the infra container like a container of the pod that names no profile. A profile from a file is meant for the pod's
// programs; the infra container gets the engine's default instead.
func sandboxSeccomp(p *v1.Pod, t Target) []string {
	if LocalhostProfile(p, &v1.Container{}) != "" {
		return nil
	}
	options, _ := seccomp(p, &v1.Container{}, t) // the containers report an invalid profile
	return options
}

// apparmor leaves RuntimeDefault to the engine, which has a profile only if the kernel has AppArmor.
func apparmor(p *v1.Pod, c *v1.Container) ([]string, error) {
	profile := podspec.AppArmorProfile(p, c)
	switch {
	case profile == nil, profile.Type == v1.AppArmorProfileTypeRuntimeDefault:
		return nil, nil
	case profile.Type == v1.AppArmorProfileTypeUnconfined:
		return []string{"apparmor=unconfined"}, nil
	case profile.Type == v1.AppArmorProfileTypeLocalhost && profile.LocalhostProfile != nil:
		return []string{"apparmor=" + *profile.LocalhostProfile}, nil
	}
	return nil, fmt.Errorf("container %s: appArmorProfile %q: must be Unconfined, RuntimeDefault, or Localhost with a localhostProfile", c.Name, profile.Type)
}

// bind adds a bind mount. It prefers the short form, the only one that engines before 1.13 know; but that does not allow paths with a colon. explicit
// says that the engine makes read-only mounts recursive unless the request says otherwise.
func bind(h *container.HostConfig, m pod.Mount, explicit bool) error {
	propagation := map[v1.MountPropagationMode]string{
		"": "", v1.MountPropagationNone: "", v1.MountPropagationHostToContainer: "rslave", v1.MountPropagationBidirectional: "rshared",
	}
	mode, ok := propagation[m.Propagation]
	if !ok {
		return fmt.Errorf("volume %s: mountPropagation %q: must be None, HostToContainer or Bidirectional", m.Name, m.Propagation)
	}
	explicit = explicit && m.ReadOnly
	if explicit || strings.Contains(m.HostPath+m.ContainerPath, ":") {
		long := mount.Mount{Type: mount.TypeBind, Source: m.HostPath, Target: m.ContainerPath, ReadOnly: m.ReadOnly}
		if mode != "" || explicit {
			long.BindOptions = &mount.BindOptions{Propagation: mount.Propagation(mode)}
		}
		if explicit {
			long.BindOptions.ReadOnlyForceRecursive, long.BindOptions.ReadOnlyNonRecursive = m.Recursive, !m.Recursive
			long.BindOptions.CreateMountpoint = true // as the short form does
			if m.Recursive {
				long.BindOptions.Propagation = mount.PropagationRPrivate // required by the engine
			}
		}
		h.Mounts = append(h.Mounts, long)
		return nil
	}
	var options []string
	if m.ReadOnly {
		options = append(options, "ro")
	}
	if mode != "" {
		options = append(options, mode)
	}
	text := m.HostPath + ":" + m.ContainerPath
	if len(options) > 0 {
		text += ":" + strings.Join(options, ",")
	}
	h.Binds = append(h.Binds, text)
	return nil
}

func bindFiles(h *container.HostConfig, files []pod.File) error {
	for _, f := range files {
		if err := bind(h, pod.Mount{Name: f.ContainerPath, HostPath: f.HostPath, ContainerPath: f.ContainerPath, ReadOnly: f.ReadOnly}, false); err != nil {
			return err
		}
	}
	return nil
}
