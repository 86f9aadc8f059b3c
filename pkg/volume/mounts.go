package volume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/links"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/subpath"
)

// Mounts implements pod.Volumes. Prepare has made the volumes before. An error names the volumeMount.
func (m *Manager) Mounts(ctx context.Context, p *v1.Pod, c *v1.Container, env []pod.Env) ([]pod.Mount, error) {
	defer m.lock(p.UID).Unlock()
	var out []pod.Mount
	for i := range c.VolumeMounts {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		mount, err := m.mount(ctx, p, c, i, env)
		if err != nil {
			return nil, fmt.Errorf("cannot mount volume %q into container %q: %w", c.VolumeMounts[i].Name, c.Name, err)
		}
		out = append(out, mount)
	}
	if m.host.Platform.OS == "windows" {
		if err := subpath.CheckTargets(c, out); err != nil {
			return nil, fmt.Errorf("cannot mount volumes into container %q: %w", c.Name, err)
		}
	}
	return out, nil
}

// mount makes one volumeMount of c.
func (m *Manager) mount(ctx context.Context, p *v1.Pod, c *v1.Container, index int, env []pod.Env) (pod.Mount, error) {
	vm := &c.VolumeMounts[index]
	podDir, err := m.podDir(p.UID)
	if err != nil {
		return pod.Mount{}, err
	}
	kind, v, err := m.find(p, vm.Name)
	if err != nil {
		return pod.Mount{}, err
	}
	inside, err := paths.Container(m.host.Platform, vm.MountPath)
	if err != nil {
		return pod.Mount{}, err
	}
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		if sub, err = subpath.Expand(vm.SubPathExpr, env); err != nil {
			return pod.Mount{}, fmt.Errorf("subPathExpr %q: %w", vm.SubPathExpr, err)
		}
	}
	from, err := kind.Mount(ctx, v)
	if err == nil && from.Sealed && sub != "" {
		err = m.subPaths.Check(from.Path, sub)
	}
	if err != nil {
		return pod.Mount{}, err
	}
	linked := from.Linked && m.host.Platform.OS == "windows"
	if linked {
		if from.Path, err = m.follow(from, inside); err != nil {
			return pod.Mount{}, err
		}
	}
	mount := pod.Mount{Name: vm.Name, HostPath: from.Path, ContainerPath: inside, ReadOnly: vm.ReadOnly || from.ReadOnly || v.ReadOnly}
	if vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone {
		mount.Propagation = *vm.MountPropagation
	}
	if linked && sub == "" {
		return mount, nil // a directory: a look at whether it is a file may hang, if a share does not answer
	}
	err = m.subPaths.Apply(&mount, sub, subpath.Target{PodDir: podDir, Volume: vm.Name, Container: c.Name, Index: index})
	return mount, err
}

// follow returns what the engine is to mount for a volume that may be a link: what was checked, and not the link, which may lead elsewhere by then.
func (m *Manager) follow(from Mount, inside string) (string, error) {
	end, err := links.Follow(m.host.Links.Read, from.Path)
	if err == nil && from.Confine != nil {
		err = from.Confine(end)
	}
	if err == nil {
		err = end.Mountable(m.host.Platform.Build, inside)
	}
	if err != nil {
		return "", fmt.Errorf("the driver's link %s: %w", from.Path, err)
	}
	return end.Path, nil
}

// Devices implements pod.Volumes. Prepare has made the volumes before. An error names the volumeDevice.
func (m *Manager) Devices(p *v1.Pod, c *v1.Container) ([]pod.Device, error) {
	var out []pod.Device
	for _, vd := range c.VolumeDevices {
		kind, v, err := m.find(p, vd.Name)
		block, ok := kind.(BlockKind)
		if err == nil && (!ok || !v.Block()) {
			err = errors.New("its volume has no volumeMode Block")
		}
		host := ""
		if err == nil {
			host, err = block.Device(v)
		}
		if err == nil {
			host, err = filepath.EvalSymlinks(host)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot give device %q to container %q: %w", vd.Name, c.Name, err)
		}
		out = append(out, pod.Device{HostPath: host, ContainerPath: vd.DevicePath, ReadOnly: v.ReadOnly})
	}
	return out, nil
}
