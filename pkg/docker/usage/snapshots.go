package usage

import (
	"context"
	"os"
	"path"
	"strings"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// Since release 29 an engine keeps images and containers in containerd's store. It then reports no directory of a container's layer, and its own root
// has neither. Both are in the source of the containers' root file systems, which the mount table shows while they run:
//
//	ROOT/rootfs/SNAPSHOTTER/CONTAINER  overlay  upperdir=STORE/io.containerd.snapshotter.v1.SNAPSHOTTER/snapshots/7/fs

// snapshots are root file systems in containerd's store, read from this host's mounts.
type snapshots struct {
	layers map[string]string // by container: its writable directory
	store  string            // containerd's root; "": no container runs
}

// snapshotsOf parses a mount table (proc_pid_mountinfo(5)). root is the engine's.
func snapshotsOf(mountinfo, root string) snapshots {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	out := snapshots{layers: map[string]string{}}
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if len(place) < 5 || len(kind) < 3 || kind[0] != "overlay" {
			continue
		}
		point := unescape.Replace(place[4])
		if path.Dir(path.Dir(point)) != path.Join(root, "rootfs") {
			continue
		}
		for option := range strings.SplitSeq(kind[2], ",") {
			upper, ok := strings.CutPrefix(option, "upperdir=")
			if !ok {
				continue
			}
			upper = unescape.Replace(upper)
			out.layers[path.Base(point)] = upper
			if store, _, ok := strings.Cut(upper, "/io.containerd.snapshotter.v1."); ok {
				out.store = store
			}
		}
	}
	return out
}

// ImageRoot is a directory of the file system on which the engine keeps images and writable layers: its root, or containerd's if that keeps them.
// A running container shows containerd's. Until one runs it is a usual one that has the snapshotter's directory, or else the engine's.
func (m *Meter) ImageRoot(ctx context.Context) (string, error) {
	info, known := m.engine.LastInfo()
	if !known {
		var err error
		if info, err = m.engine.Info(ctx); err != nil {
			return "", err
		}
	}
	if !info.Snapshots || !m.engine.Local() {
		return info.Root, nil
	}
	if store := m.store.Load(); store != nil {
		return *store, nil
	}
	mountinfo, err := m.mounts()
	if err != nil {
		return "", err
	}
	store := snapshotsOf(mountinfo, info.Root).store
	if store == "" {
		return m.usualStore(info), nil
	}
	m.store.Store(&store)
	return store, nil
}

// systemContainerd is containerd's default socket and root, which packages of Docker use.
const systemContainerd, systemStore = "/run/containerd/containerd.sock", "/var/lib/containerd"

// usualStore is containerd's default root if the engine's snapshotter keeps its files there, or else the engine's root. An engine that starts a
// containerd itself gives it a directory below its own.
func (m *Meter) usualStore(info engine.Info) string {
	store := path.Join(info.Root, "containerd/daemon")
	if info.Containerd == systemContainerd {
		store = systemStore
	}
	if m.exists(path.Join(store, "io.containerd.snapshotter.v1."+info.StorageDriver)) {
		return store
	}
	return info.Root
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// layers returns the writable directories of running containers of containerd's store, by id. It reads the mount table at the first call.
func (m *Meter) layers() func(id string) string {
	var read *snapshots
	return func(id string) string {
		info, known := m.engine.LastInfo()
		if !known || !info.Snapshots || !m.engine.Local() {
			return ""
		}
		if read == nil {
			read = &snapshots{}
			if mountinfo, err := m.mounts(); err == nil { // on failure the engine measures
				*read = snapshotsOf(mountinfo, info.Root)
			}
		}
		return read.layers[id]
	}
}
