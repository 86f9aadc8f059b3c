package disk

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/host"
)

const pageful = 100_000

// subject is a pod with all kinds of places; each contains pageful bytes and a few more.
func subject(t *testing.T) (Subject, string) {
	t.Helper()
	root := t.TempDir()
	file := func(name string) string {
		name = filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, make([]byte, pageful), 0o600))
		return filepath.Dir(name)
	}
	pod := filepath.Join(root, "pods/u1")
	s := Subject{UID: "u1", Dir: pod, Places: []Place{
		{Volume: "cache", EmptyDir: true, Path: file("pods/u1/volumes/kubernetes.io~empty-dir/cache/f")},
		{Volume: "later", EmptyDir: true, Path: filepath.Join(pod, "volumes/kubernetes.io~empty-dir/later")},
		{Volume: "data", Claim: "pvc", Own: true, Path: root},
	}}
	file("pods/u1/containers/web/termination-0")
	must(t, os.WriteFile(filepath.Join(pod, "etc-hosts"), make([]byte, pageful), 0o600))
	s.Boxes = []Box{
		{ID: "c1", Name: "web", Layer: file("overlay2/x/diff/f"), Log: &Amount{8, 1}, Volumes: []string{file("volumes/a/_data/f"), file("volumes/b/_data/f")},
			Mounted: []string{file("containers/s/hostname") + "/hostname", "/no/such/file"}},
		{ID: "c2", Name: "side", Mounted: []string{root + "/containers/s/hostname"}},
	}
	return s, root
}

func within(got, want uint64) bool { return got >= want && got < want+pageful/2 }

// TestMeter: every place where a pod can write counts.
func TestMeter(t *testing.T) {
	s, _ := subject(t)
	m := NewMeter(NewCrew(clock.RealClock{}, 2), Parts{Layer: func(_ context.Context, id string) (uint64, error) {
		if id != "c2" {
			t.Errorf("the engine measures %s", id)
		}
		return 55, nil
	}})
	got := m.Pods(t.Context(), Terms{Patience: time.Minute}, []Subject{s})["u1"]
	if len(got.Volumes) != 2 || !within(got.Volumes[0].Used, pageful) || got.Volumes[0].InodesUsed != 2 || got.Volumes[0].Capacity == 0 || !got.Volumes[0].EmptyDir {
		t.Errorf("emptyDir: %+v", got.Volumes)
	} else if claim := got.Volumes[1]; claim.Claim != "pvc" || claim.Used < 1<<20 || claim.Capacity < claim.Used {
		t.Errorf("claim: %+v", claim)
	}
	web, side := got.Containers["c1"], got.Containers["c2"]
	if !within(web.Layer.Bytes, pageful) || !within(web.Volumes.Bytes, 2*pageful) || web.Log.Bytes != 8 || web.Sum().Files != 7 {
		t.Errorf("container: %+v %+v", web, web.Sum())
	}
	if side.Layer.Bytes != 55 || side.Volumes != nil || side.Sum().Bytes != 55 {
		t.Errorf("container of another driver: %+v", side)
	}
	if !within(got.Files.Bytes, 3*pageful) || got.Files.Files != 6 {
		t.Errorf("the pod's own files: %+v", got.Files)
	}
	if len(got.Late) != 0 {
		t.Errorf("late: %+v", got.Late)
	}
}

// TestRemoved: a deleted file that a process holds open or mapped counts once, where it was.
func TestRemoved(t *testing.T) {
	s, _ := subject(t)
	s.Boxes[0].PID = os.Getpid()
	find := FindRemoved("/proc", func(pid int) ([]int, error) { return []int{pid, 1 << 30}, nil })
	m := NewMeter(NewCrew(clock.RealClock{}, 1), Parts{Removed: func(boxes []Box) ([]Removed, error) {
		all, err := find(boxes)
		// The test's mount shows the whole file system; a container has one for each volume.
		for i := range all {
			switch {
			case all[i].Bytes == 0:
			case all[i].Bytes < 2*pageful:
				all[i].mountPoint = mountPoint{"ext4", "/lib/pods/u1/volumes/kubernetes.io~empty-dir/cache/sub", "/cache"}
			default:
				all[i].mountPoint = mountPoint{"overlay", "/", "/"}
			}
		}
		return all, err
	}})
	terms := Terms{Patience: time.Minute}
	before := m.Pods(t.Context(), terms, []Subject{s})["u1"]

	dir := s.Places[0].Path
	open, err := os.Create(filepath.Join(dir, "open"))
	must(t, err)
	defer open.Close()
	_, err = open.Write(make([]byte, pageful))
	again, err2 := os.Open(open.Name())
	must(t, err, err2, os.Remove(open.Name()))
	defer again.Close()
	layer, err := os.Create(filepath.Join(s.Boxes[0].Layer, "big"))
	must(t, err)
	_, err = layer.Write(make([]byte, 3*pageful))
	must(t, err)
	mapped, err := unix.Mmap(int(layer.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err, layer.Close(), os.Remove(layer.Name()))
	defer unix.Munmap(mapped)

	terms.Urgent = true
	after := m.Pods(t.Context(), terms, []Subject{s})["u1"]
	if grown := after.Volumes[0].Used - before.Volumes[0].Used; !within(grown, pageful) {
		t.Errorf("the emptyDir grew by %d bytes, want %d", grown, pageful)
	}
	grown := after.Containers["c1"].Layer.Bytes - before.Containers["c1"].Layer.Bytes
	if _, err := os.Open("/proc/self/map_files"); errors.Is(err, os.ErrPermission) || grown == 0 && !capable(t) {
		t.Logf("what is mapped alone is not seen here: this process may not read map_files")
	} else if !within(grown, 3*pageful) {
		t.Errorf("the root file system grew by %d bytes, want %d", grown, 3*pageful)
	}
}

// capable says whether the kernel lets this process follow the links in map_files.
func capable(t *testing.T) bool {
	t.Helper()
	names, err := os.ReadDir("/proc/self/map_files")
	if err != nil || len(names) == 0 {
		return false
	}
	_, err = os.Readlink("/proc/self/map_files/" + names[0].Name())
	return err == nil
}

// TestLocate: a removed file counts against the volume of its mount, and never against a separate file system.
func TestLocate(t *testing.T) {
	s := Subject{UID: "u1", Dir: "/var/lib/kubelet/pods/u1", Places: []Place{
		{Volume: "cache", Path: "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/cache"},
		{Volume: "memory", Own: true, Path: "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/memory"},
		{Volume: "data", Claim: "c", Own: true, Path: "/mnt/disks/ssd/one"},
	}, Boxes: []Box{{ID: "c1", Volumes: []string{"/var/lib/docker/volumes/abc/_data"}}}}
	for _, test := range []struct {
		mountPoint
		where  where
		volume string
	}{
		{mountPoint{"overlay", "/", "/"}, inContainer, ""},
		{mountPoint{"btrfs", "/subvolumes/x", "/"}, inContainer, ""},
		{mountPoint{"tmpfs", "/", "/dev/shm"}, elsewhere, ""},
		{mountPoint{"ext4", "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/cache", "/cache"}, inVolume, "cache"},
		{mountPoint{"ext4", "/pods/u1/volumes/kubernetes.io~empty-dir/cache/sub", "/cache"}, inVolume, "cache"},
		{mountPoint{"ext4", "/pods/u1/volumes/kubernetes.io~empty-dir/cache2", "/cache"}, inPod, ""},
		{mountPoint{"ext4", "/pods/u1/volumes/kubernetes.io~empty-dir/memory", "/m"}, elsewhere, ""},
		{mountPoint{"ext4", "/mnt/disks/ssd/one", "/data"}, elsewhere, ""},
		{mountPoint{"ext4", "/volumes/abc/_data", "/v"}, inContainer, ""},
		{mountPoint{"ext4", "/pods/u1/containers/web/termination-0", "/dev/termination-log"}, inPod, ""},
		{mountPoint{"ext4", "/home", "/host"}, elsewhere, ""},
		{mountPoint{"ext4", "/pods/u2/volumes/kubernetes.io~empty-dir/cache", "/host"}, elsewhere, ""},
	} {
		if where, volume := locate(&s, Removed{Container: "c1", mountPoint: test.mountPoint}); where != test.where || volume != test.volume {
			t.Errorf("%+v: %d %q, want %d %q", test.mountPoint, where, volume, test.where, test.volume)
		}
	}
}

func TestProcFiles(t *testing.T) {
	const mountinfo = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 21 8:1 /a\\040b /mnt\\134x rw,noatime master:1 - xfs /dev/sdb rw\nshort\n"
	if m, ok := mountOf([]byte(mountinfo), "36"); !ok || m != (mountPoint{"xfs", "/a b", `/mnt\x`}) {
		t.Errorf("%+v, %v", m, ok)
	}
	if _, ok := mountOf([]byte(mountinfo), "short"); ok {
		t.Error("half a line")
	}
	if id := mountID([]byte("pos:\t0\nflags:\t02\nmnt_id:\t36\nino:\t5\n")); id != "36" {
		t.Errorf("mount %q", id)
	}
	const maps = "00400000-00452000 r-xp 00000000 08:02 173521 /bin/x\n0000a000-0000b000 r--s 00000000 08:02 9 /tmp/big (deleted)\n7f00-7f01 rw-s 0 00:01 0 /dev/zero (deleted)\n"
	if got := mappedRemoved([]byte(maps)); !slices.Equal(got, []string{"a000-b000"}) {
		t.Errorf("%q", got)
	}
}

// TestFrozen: a hanging volume does not affect its pod's other figures or other pods; the assumed usage is reported.
func TestFrozen(t *testing.T) {
	s, _ := subject(t)
	other, _ := subject(t)
	other.UID, other.Boxes = "u2", nil
	s.Boxes = s.Boxes[:1]
	synctest.Test(t, func(t *testing.T) {
		crew := NewCrew(clock.RealClock{}, 1)
		frozen := make(chan struct{})
		key := askDisk(s.Places[2].Path).Key
		crew.Look(t.Context(), Terms{}, []Ask{{key, func() Pass {
			return func(func(host.Disk) bool) (host.Disk, bool, error) {
				<-frozen
				return host.Disk{}, true, nil
			}
		}}})
		m := NewMeter(crew, Parts{})
		got := m.Pods(t.Context(), Terms{Patience: 10 * time.Second}, []Subject{s, other})
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, []types.UID{"u1", "u2"}) {
			t.Fatalf("%v", keys)
		}
		one := got["u1"]
		if !within(one.Volumes[0].Used, pageful) || !within(one.Files.Bytes, 3*pageful) || !within(one.Containers["c1"].Volumes.Bytes, 2*pageful) {
			t.Errorf("%+v", one)
		}
		if len(one.Late) != 1 || one.Late[0].What != `volume "data"` || !one.Late[0].Claim || !one.Late[0].System || !one.Late[0].At.IsZero() {
			t.Errorf("late: %+v", one.Late)
		}
		if two := got["u2"]; len(two.Volumes) != 2 || !within(two.Volumes[0].Used, pageful) || len(two.Late) != 0 {
			t.Errorf("the other pod: %+v", two)
		}
		close(frozen)
	})
}
