package kinds

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/turns"
)

const (
	// nfsWait is how long a pod waits for its server. Then it gets an error, and the mount goes on.
	nfsWait = 2 * time.Minute
	// nfsLimit is how long mount may take. mount.nfs itself gives up after two minutes, by default.
	nfsLimit = 10 * time.Minute
	// nfsPatience is how long an unmount may take before the kernel is told to give up the requests that the server has not answered.
	nfsPatience = time.Minute
)

// nfs is a directory of an NFS server (v1.NFSVolumeSource), mounted for each pod by the host's mount(8). As in upstream it keeps its owners: fsGroup does
// not change them. A server that does not answer holds up its own volumes only.
type nfs struct {
	host     *volume.Host
	run      command.Runner
	turns    turns.Turns[string] // by directory
	patience time.Duration
}

func newNFS(host *volume.Host, run command.Runner) *nfs {
	k := &nfs{host: host, run: run, patience: nfsPatience}
	k.turns.Wait, k.turns.Limit = nfsWait, nfsLimit
	return k
}

func (*nfs) Name() string { return "kubernetes.io/nfs" }

func (*nfs) source(v volume.Volume) *v1.NFSVolumeSource {
	if v.PV != nil {
		return v.PV.Spec.NFS
	}
	return v.Spec.NFS
}

func (k *nfs) Has(v volume.Volume) bool { return k.source(v) != nil }

// Prepare looks at the mount table alone when the volume is there: a look at the volume may hang.
func (k *nfs) Prepare(ctx context.Context, v volume.Volume) (string, error) {
	dir, err := v.Dir()
	if err != nil {
		return "", err
	}
	if mounted, err := k.mounted(dir); err != nil || mounted {
		return dir, err
	}
	args, err := nfsMount(k.source(v), v, dir)
	if err != nil {
		return "", err
	}
	if err := paths.MakeDir(dir, paths.DirMode); err != nil {
		return "", fmt.Errorf("cannot make the directory of the volume: %w", err)
	}
	err = k.turns.Do(ctx, dir, func(ctx context.Context) error {
		if mounted, err := k.mounted(dir); err != nil || mounted { // by a call that an earlier Prepare has given up
			return err
		}
		_, err := k.run.Run(ctx, nil, "mount", args...)
		return err
	})
	if err != nil && (strings.Contains(err.Error(), "helper program") || strings.Contains(err.Error(), "unknown filesystem type")) { // what mount(8) says without mount.nfs
		err = fmt.Errorf("%w; want mount.nfs on this node: install nfs-common (Debian, Ubuntu) or nfs-utils (RHEL, SUSE)", err)
	}
	if err != nil {
		return "", fmt.Errorf("NFS server %s: %w", k.source(v).Server, err)
	}
	return dir, nil
}

func (k *nfs) mounted(dir string) (bool, error) {
	points, err := k.host.Mounts.Below(dir)
	return slices.Contains(points, dir), err
}

// nfsMount is the arguments of mount(8) for v at dir. Servers and paths come from pods: none may be read as an option.
func nfsMount(source *v1.NFSVolumeSource, v volume.Volume, dir string) ([]string, error) {
	server := strings.TrimSuffix(strings.TrimPrefix(source.Server, "["), "]")
	if server == "" || strings.HasPrefix(server, "-") || strings.IndexFunc(server, func(r rune) bool { return !serverRune(r) }) >= 0 {
		return nil, fmt.Errorf("nfs.server: %q: want a host name or an address", source.Server)
	}
	if !path.IsAbs(source.Path) || strings.ContainsFunc(source.Path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, fmt.Errorf("nfs.path: %q: want an absolute path on the server", source.Path)
	}
	if strings.Contains(server, ":") {
		server = "[" + server + "]" // nfs(5)
	}
	var options []string
	if v.PV != nil {
		options = append(options, v.PV.Spec.MountOptions...)
	}
	if source.ReadOnly || v.ReadOnly {
		options = append(options, "ro")
	}
	args := []string{"-t", "nfs"}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	return append(args, "--", server+":"+source.Path, dir), nil
}

// serverRune reports whether a host name or an address, with its zone, may contain r.
func serverRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:%", r)
}

func (k *nfs) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	dir, err := v.Dir()
	return volume.Mount{Path: dir, ReadOnly: k.source(v).ReadOnly}, err
}

func (*nfs) Usage(v volume.Volume) (disk.Place, bool, error) {
	dir, err := v.Dir()
	return disk.Place{Path: dir, Own: true}, true, err
}

// Clean unmounts. What a server does not answer is given up after a while, with what was not written yet, so that the pod can end.
func (k *nfs) Clean(ctx context.Context, left volume.Remains) error {
	volumes, err := left.Volumes(k.Name())
	errs := []error{err}
	for _, v := range volumes {
		if err := k.turns.Do(ctx, v.Dir, func(context.Context) error { return k.unmount(v.Dir) }); err != nil {
			errs = append(errs, fmt.Errorf("NFS volume %s: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// unmount unmounts all that lies at dir, the last mounted first, and removes dir.
func (k *nfs) unmount(dir string) error {
	points, err := k.host.Mounts.Below(dir)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		done := make(chan error, 1)
		// Not waited for: Force makes it end, but a kernel that hangs must not hang the pod.
		go func() { done <- k.host.Mounts.Unmount(p) }()
		late := time.NewTimer(k.patience)
		select {
		case err = <-done:
		case <-late.C:
			klog.InfoS("The NFS server does not answer; unmounting by force, what was not written is lost", "path", p)
			err = k.host.Mounts.Force(p)
		}
		late.Stop()
		if err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		klog.V(2).InfoS("Cannot remove the directory of an NFS volume yet", "path", dir, "err", err)
	}
	return nil
}
