package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// convertWindows adds the fields that only Windows engines have. As the API documents, it ignores fields without a meaning there: capabilities,
// groups, profiles, host namespaces. Single files cannot be mounted and are copied.
func convertWindows(out *Creation, p *v1.Pod, c *v1.Container, in *pod.Inputs, t Target) error {
	h := out.HostConfig
	h.Isolation = isolation(p, in.Runtime, t)
	windowsResources(&h.Resources, c, t, h.Isolation.IsHyperV() || h.Isolation.IsDefault() && t.HyperV)
	options := podspec.WindowsOptions(p, c)
	if options.HostProcess != nil && *options.HostProcess {
		return fmt.Errorf("container %s: windowsOptions.hostProcess true: Docker does not support HostProcess containers; must be false", c.Name)
	}
	if options.RunAsUserName != nil {
		out.Config.User = *options.RunAsUserName
	}
	if options.GMSACredentialSpec != nil && *options.GMSACredentialSpec != "" {
		option, spec := credentialOption(*options.GMSACredentialSpec, out.Name, t)
		h.SecurityOpt, out.CredentialSpec = append(h.SecurityOpt, option), spec
	}
	out.Config.WorkingDir = strings.ReplaceAll(c.WorkingDir, "/", `\`)
	out.Files = in.Files
	for _, m := range in.Mounts {
		if m.Copy {
			out.Files = append(slices.Clone(out.Files), pod.File{HostPath: m.HostPath, ContainerPath: m.ContainerPath, ReadOnly: m.ReadOnly})
			continue
		}
		source, err := podspec.WindowsPath(m.HostPath)
		if err != nil {
			return fmt.Errorf("container %s: volume %s: %w", c.Name, m.Name, err)
		}
		target, err := podspec.WindowsPath(m.ContainerPath)
		if err != nil {
			return fmt.Errorf("container %s: volume %s: mountPath: %w", c.Name, m.Name, err)
		}
		text := source + ":" + target
		if m.ReadOnly {
			text += ":ro"
		}
		h.Binds = append(h.Binds, text)
	}
	return nil
}

// windowsResources sets only limits. With process isolation, the host ignores an additional weight, and some engines refuse it. For a virtual
// machine, the engine converts NanoCPUs to a number of processors and a share of them. For a process, it converts them to a share of the processors
// that it sees: those of its group, at most 64 (moby daemon/oci_windows.go createSpecWindowsFields, since 17.06). If the host has more, the limit is
// scaled down accordingly.
func windowsResources(r *container.Resources, c *v1.Container, t Target, hyperv bool) {
	const nano = 1_000_000_000
	if limit := c.Resources.Limits.Cpu().MilliValue() * (nano / 1000); limit > 0 {
		if seen, all := int64(t.CPUs), int64(t.HostCPUs); !hyperv && seen > 0 && all > seen {
			limit = int64(float64(min(limit, all*nano)) * float64(seen) / float64(all))
		} else if seen > 0 {
			limit = min(limit, seen*nano)
		}
		r.NanoCPUs = limit
	}
	r.Memory = c.Resources.Limits.Memory().Value()
}
