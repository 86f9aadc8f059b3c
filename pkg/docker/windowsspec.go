package docker

import (
	"fmt"
	"strings"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// convertWindows adds what only a Windows engine knows. Fields that mean nothing there are left out, as the API documents them:
// capabilities, groups, profiles, host namespaces. Single files cannot be mounted; Inputs.Files is passed over.
func convertWindows(out *Creation, p *v1.Pod, c *v1.Container, in *pod.Inputs, t Target) error {
	h := out.HostConfig
	h.Isolation = isolation(p, in.Runtime)
	windowsResources(&h.Resources, c, t)
	var options [2]*v1.WindowsSecurityContextOptions
	if sc := p.Spec.SecurityContext; sc != nil {
		options[0] = sc.WindowsOptions
	}
	if sc := c.SecurityContext; sc != nil {
		options[1] = sc.WindowsOptions
	}
	var credentials string
	for _, o := range options { // the container's win
		if o == nil {
			continue
		}
		if o.HostProcess != nil && *o.HostProcess {
			return fmt.Errorf("container %s: windowsOptions.hostProcess true: Docker has no HostProcess containers; must be false", c.Name)
		}
		if o.RunAsUserName != nil {
			out.Config.User = *o.RunAsUserName
		}
		if o.GMSACredentialSpec != nil {
			credentials = *o.GMSACredentialSpec
		}
	}
	if credentials != "" {
		h.SecurityOpt = append(h.SecurityOpt, "credentialspec=raw://"+credentials)
	}
	out.Config.WorkingDir = strings.ReplaceAll(c.WorkingDir, "/", `\`)
	for _, m := range in.Mounts {
		text := windowsPath(m.HostPath) + ":" + windowsPath(m.ContainerPath)
		if m.ReadOnly {
			text += ":ro"
		}
		h.Binds = append(h.Binds, text)
	}
	return nil
}

// windowsResources sets limits only. A weight beside them is ignored by the host with process isolation and refused by some engines.
// NanoCPUs is what the engine turns into a processor count and maximum for either isolation.
func windowsResources(r *container.Resources, c *v1.Container, t Target) {
	if milli := c.Resources.Limits.Cpu().MilliValue(); milli > 0 {
		r.NanoCPUs = milli * 1_000_000
		if most := int64(t.CPUs) * 1_000_000_000; most > 0 {
			r.NanoCPUs = min(r.NanoCPUs, most)
		}
	}
	r.Memory = c.Resources.Limits.Memory().Value()
}

// windowsPath makes a path of a spec one that the engine takes: backslashes, and drive C where none is named. Pipes (\\.\pipe\name) and
// shares have no drive.
func windowsPath(path string) string {
	path = strings.ReplaceAll(path, "/", `\`)
	if strings.HasPrefix(path, `\\`) || len(path) > 1 && path[1] == ':' {
		return path
	}
	if !strings.HasPrefix(path, `\`) {
		path = `\` + path
	}
	return "C:" + path
}
