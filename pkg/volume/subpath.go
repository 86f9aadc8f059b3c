package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// subPathsName is the directory below pods/<uid> with the mount points of subPaths: <volume>/<container>/<index of the volumeMount>.
const subPathsName = "volume-subpaths"

// Mounts implements pod.Volumes. Prepare has made the volumes before. An error names the volumeMount.
func (m *Manager) Mounts(ctx context.Context, p *v1.Pod, c *v1.Container, env []pod.Env) ([]pod.Mount, error) {
	s := m.lock(p.UID)
	defer s.Unlock()
	var out []pod.Mount
	for i := range c.VolumeMounts {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		mount, err := m.mount(ctx, p, mountOf{c, i}, env)
		if err != nil {
			return nil, fmt.Errorf("cannot mount volume %q into container %q: %w", c.VolumeMounts[i].Name, c.Name, err)
		}
		out = append(out, mount)
	}
	if m.cfg.Platform.OS == "windows" {
		if err := checkTargets(c, out); err != nil {
			return nil, fmt.Errorf("cannot mount volumes into container %q: %w", c.Name, err)
		}
	}
	return out, nil
}

// mountOf is one volumeMount of a container.
type mountOf struct {
	container *v1.Container
	index     int
}

func (m *Manager) mount(ctx context.Context, p *v1.Pod, of mountOf, env []pod.Env) (pod.Mount, error) {
	vm := &of.container.VolumeMounts[of.index]
	var v *v1.Volume
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Name == vm.Name {
			v = &p.Spec.Volumes[i]
		}
	}
	if v == nil {
		return pod.Mount{}, errors.New("spec.volumes has no volume of that name")
	}
	host, err := m.path(p, v)
	if err != nil {
		return pod.Mount{}, err
	}
	inside, err := containerPath(m.cfg.Platform, vm.MountPath)
	if err != nil {
		return pod.Mount{}, err
	}
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		if sub, err = expand(vm.SubPathExpr, env); err != nil {
			return pod.Mount{}, fmt.Errorf("subPathExpr %q: %w", vm.SubPathExpr, err)
		}
	}
	if v.Image != nil {
		if host, err = m.prepareImage(ctx, p, v); err != nil {
			return pod.Mount{}, err
		}
		if sub != "" { // nothing is made in an image
			if clean, cleanErr := cleanSubPath(m.cfg.Platform, sub); cleanErr == nil {
				if err := inImage(host, clean); err != nil {
					return pod.Mount{}, fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
				}
			}
		}
	}
	mount := pod.Mount{Name: vm.Name, HostPath: host, ContainerPath: inside, ReadOnly: vm.ReadOnly}
	// What the agent keeps up to date no container may write to.
	if v.Secret != nil || v.ConfigMap != nil || v.Projected != nil || v.DownwardAPI != nil || v.Image != nil {
		mount.ReadOnly = true
	}
	if _, readOnly := claimOf(p, v); readOnly {
		mount.ReadOnly = true
	}
	if vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone {
		mount.Propagation = *vm.MountPropagation
	}
	switch {
	case m.cfg.Platform.OS == "windows" && podspec.IsPipe(host):
		err = m.checkPipe(mount, sub)
	case sub != "":
		err = m.subPath(p, of, sub, &mount)
	case m.cfg.Platform.OS == "windows":
		err = m.wholeFile(p, of, &mount)
	}
	return mount, err
}

// subPath makes mount, which is of a whole volume, one of sub in it, which is made when missing. sub may go through links that stay within
// the volume; what leads out of it is refused, also when a container exchanges links meanwhile. On Linux the file that was found is held
// open and bound to a mount point of ours. On Windows a directory is checked and its path taken: nothing is kept open, since an open
// handle would hinder the pod in its own volume, so a later exchange is not seen; only directories that containers cannot exchange
// while they run (junctions need privileges that they lack) stand there.
func (m *Manager) subPath(p *v1.Pod, of mountOf, sub string, mount *pod.Mount) error {
	clean, err := cleanSubPath(m.cfg.Platform, sub)
	if err != nil {
		return err
	}
	if clean == "." {
		return nil
	}
	root, err := os.OpenRoot(mount.HostPath)
	if err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	defer root.Close()
	if err := makeInside(root, clean); err != nil {
		return fmt.Errorf("failed to create subPath directory %q: %w", sub, err)
	}
	open := openInside
	if m.cfg.Platform.OS == "windows" {
		open = (*os.Root).Open
	}
	f, err := open(root, clean)
	if err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	defer f.Close()
	if m.cfg.Platform.OS == "windows" {
		mount.HostPath = filepath.Join(mount.HostPath, filepath.FromSlash(clean))
		return m.stageFile(p, of, f, mount)
	}
	target, err := m.subPathTarget(p, of)
	if err != nil {
		return err
	}
	if err := m.bind(f, target); err != nil {
		return fmt.Errorf("failed to prepare subPath %q: %w", sub, err)
	}
	mount.HostPath = target
	return nil
}

// subPathTarget is where what is mounted by a subPath is shown to the engine.
func (m *Manager) subPathTarget(p *v1.Pod, of mountOf) (string, error) {
	c := of.container
	podDir, err := m.podDir(p.UID)
	if err == nil {
		err = errors.Join(checkElement(m.cfg.Platform, c.Name), checkElement(m.cfg.Platform, c.VolumeMounts[of.index].Name))
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(podDir, subPathsName, c.VolumeMounts[of.index].Name, c.Name, strconv.Itoa(of.index)), nil
}

// bind makes target show f, and keeps a mount that already does.
func (m *Manager) bind(f *os.File, target string) error {
	want, err := f.Stat()
	if err != nil {
		return err
	}
	mounted, err := m.mounts.isMount(target)
	if err != nil {
		return err
	}
	if mounted {
		if have, err := os.Stat(target); err == nil && os.SameFile(have, want) {
			return nil
		}
		if err := m.mounts.unmount(target); err != nil {
			return err
		}
	}
	// The mount point must be of the sort of what is mounted; the last container may have had another.
	if fi, err := os.Lstat(target); err == nil && fi.IsDir() != want.IsDir() {
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), dirMode); err != nil {
		return err
	}
	if want.IsDir() {
		err = makeDir(target, dirMode)
	} else {
		var t *os.File
		if t, err = os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o640); err == nil {
			err = t.Close()
		}
	}
	if err != nil {
		return err
	}
	return m.mounts.bind(f, target)
}

// makeInside makes the missing directories of sub, each with the mode (the sticky bit too) and, by setgid, the group of the volume's root.
func makeInside(root *os.Root, sub string) error {
	if _, err := root.Stat(sub); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fi, err := root.Stat(".")
	if err != nil {
		return err
	}
	at := ""
	for _, e := range strings.Split(sub, "/") {
		at = path.Join(at, e)
		switch err := root.Mkdir(at, fi.Mode().Perm()); {
		case err == nil:
			if err := root.Chmod(at, fi.Mode().Perm()|fi.Mode()&(fs.ModeSetgid|fs.ModeSticky)); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return nil
}

const maxLinks = 40

// openInside opens sub in root without doing anything to it. os.Root keeps every step within root; the last one is opened as it is, so
// that a link there is followed here, by another such walk.
func openInside(root *os.Root, sub string) (*os.File, error) {
	for range maxLinks {
		f, err := root.OpenFile(sub, openPath, 0)
		if err != nil {
			return nil, err
		}
		fi, err := f.Stat()
		if err != nil || fi.Mode()&fs.ModeSymlink == 0 {
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		}
		f.Close()
		target, err := root.Readlink(sub)
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(target) {
			return nil, fmt.Errorf("%s is a link to the absolute path %s, which may lead out of the volume", sub, target)
		}
		// Not path.Join: what stands before ".." may itself be a link.
		sub = path.Dir(sub) + "/" + filepath.ToSlash(target)
	}
	return nil, fmt.Errorf("%s leads through more than %d links", sub, maxLinks)
}

// expand replaces $(NAME) by the variable's value and $$ by $ (API: volumeMounts[].subPathExpr).
func expand(s string, env []pod.Env) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			name, _, closed := strings.Cut(s[i+2:], ")")
			if !closed {
				b.WriteByte('$')
				continue
			}
			value, ok := lookup(env, name)
			if !ok {
				return "", fmt.Errorf("missing value for %q", name)
			}
			b.WriteString(value)
			i += 2 + len(name)
		default:
			b.WriteByte('$')
		}
	}
	return b.String(), nil
}

func lookup(env []pod.Env, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if env[i].Name == name {
			return env[i].Value, true
		}
	}
	return "", false
}
