package san_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/volume/san"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// world is a storage network and this host's kernel, open-iscsi and file system programs. It validates: it refuses what the real ones refuse, and
// fails the test where a disk would be lost.
type world struct {
	*commandtest.Runner
	t      *testing.T
	dir    string
	kernel *volumetest.Kernel
	system san.System

	mu       sync.Mutex
	portals  map[string]*portal // by address
	disks    map[string]*lun    // by wwid
	sessions map[string]*session
	devices  map[string]*lun   // by name, such as sda
	maps     map[string]string // dm-0 to its wwid
	multi    bool              // multipathd runs
	late     bool              // the kernel finds devices only when the test says so
	pending  []func()
	events   []chan struct{}
	nextID   int
	nextSD   int
	busy     map[string]bool           // devices that something else has
	ports    map[string]string         // of the storage, by name: the SCSI host that sees it
	wwns     map[string]map[int]string // of FC ports: LUN to wwid
	hung     []hung
	cutAfter int // programs after which no other runs; 0: all run
}

// hung makes a program wait.
type hung struct {
	flag, word string
	until      chan struct{}
}

// hang has programs with these arguments wait until the channel is closed.
func (w *world) hang(flag, word string, until chan struct{}) {
	w.hung = append(w.hung, hung{flag, word, until})
}

var exit8 = command.ExitError{Code: 8, State: "exit status 8"}

// Run implements command.Runner.
func (w *world) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	if i := slices.IndexFunc(w.hung, func(h hung) bool { return slices.Contains(args, h.flag) && slices.Contains(args, h.word) }); i >= 0 {
		<-w.hung[i].until
	}
	if w.cutAfter < 0 {
		return nil, errors.New("signal: killed")
	}
	out, err := w.Runner.Run(ctx, stdin, name, args...)
	if w.cutAfter == 1 {
		w.cutAfter, err = -1, errors.Join(errors.New("signal: killed"))
	} else if w.cutAfter > 1 {
		w.cutAfter--
	}
	return out, err
}

// portal is an address of a storage.
type portal struct {
	targets  map[string]map[int]string // by name: LUN to wwid
	off      bool
	chap     [2]string            // of discovery
	sessions map[string][2]string // CHAP of targets
}

// lun is a disk of the storage.
type lun struct {
	wwid  string
	data  []byte
	fs    string
	blkid error // what blkid says instead
}

type session struct {
	id, iqn, portal, iface, host string
	devices                      []string
}

const (
	targetName = "iqn.2003-01.org.example:disks"
	otherName  = "iqn.2003-01.org.example:others"
	portalA    = "10.0.0.1:3260"
	portalB    = "10.0.0.2:3260"
)

// newWorld has one target with LUNs 0 and 1 at two portals, and a host that has open-iscsi and e2fsprogs.
func newWorld(t *testing.T, kernel *volumetest.Kernel) *world {
	w := &world{Runner: commandtest.New(), t: t, dir: t.TempDir(), kernel: kernel, portals: map[string]*portal{}, disks: map[string]*lun{}, sessions: map[string]*session{}, devices: map[string]*lun{},
		maps: map[string]string{}, busy: map[string]bool{}, wwns: map[string]map[int]string{}, ports: map[string]string{}, nextID: 1}
	for _, d := range []string{"sys/class", "sys/block", "dev/disk/by-id", "run", "settings", "iscsi/ifaces"} {
		w.must(os.MkdirAll(filepath.Join(w.dir, d), 0o755))
	}
	for _, wwid := range []string{"naa.60000000000000a0", "naa.60000000000000a1", "naa.60000000000000b0"} {
		w.disks[wwid] = &lun{wwid: wwid, data: make([]byte, 3<<20)}
	}
	for _, address := range []string{portalA, portalB} {
		w.portals[address] = &portal{sessions: map[string][2]string{}, targets: map[string]map[int]string{
			targetName: {0: "naa.60000000000000a0", 1: "naa.60000000000000a1"}, otherName: {0: "naa.60000000000000b0"},
		}}
	}
	w.system = san.System{Sys: filepath.Join(w.dir, "sys"), Dev: filepath.Join(w.dir, "dev"), Run: filepath.Join(w.dir, "run"), Databases: []string{filepath.Join(w.dir, "settings"), filepath.Join(w.dir, "iscsi")},
		Write: w.write, Claimed: w.claimed, Events: w.listen}
	w.Install("iscsiadm", w.iscsiadm)
	w.Install("blkid", w.blkid)
	w.Install("mkfs.ext4", w.mkfs)
	w.Install("fsck", func(_ []byte, args []string) ([]byte, error) { return nil, w.file("fsck", args, "-a") })
	w.Install("mount", w.mount)
	w.Install("multipath", w.multipath)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// set writes a value of sysfs.
func (w *world) set(path, value string) {
	path = filepath.Join(w.dir, "sys", path)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte(value+"\n"), 0o644))
}

// lay makes a link of sysfs.
func (w *world) lay(path, to string) {
	path = filepath.Join(w.dir, "sys", path)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.Symlink(filepath.Join(w.dir, "sys", to), path))
}

func (w *world) gone(path string) { w.must(os.RemoveAll(filepath.Join(w.dir, path))) }

func (w *world) listen() (<-chan struct{}, func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{}, 1)
	w.events = append(w.events, c)
	if w.late { // the device appears after someone listens
		for _, f := range w.pending {
			f()
		}
		w.pending = nil
		w.tell()
	}
	return c, func() {}, nil
}

func (w *world) tell() {
	for _, c := range w.events {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// write is what sysfs does when it is written to.
func (w *world) write(path, data string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rel, err := filepath.Rel(filepath.Join(w.dir, "sys"), path)
	w.must(err)
	parts := strings.Split(rel, "/")
	switch {
	case len(parts) == 4 && parts[0] == "class" && parts[3] == "scan":
		return w.scan(strings.TrimPrefix(parts[2], "host"), strings.Fields(data))
	case len(parts) == 4 && parts[0] == "block" && parts[3] == "delete":
		if w.devices[parts[1]] == nil {
			return fs.ErrNotExist
		}
		if used, _ := w.claims(parts[1]); used {
			w.t.Errorf("device %s was deleted while it is in use", parts[1])
		}
		w.drop(parts[1])
		return nil
	}
	return fmt.Errorf("sysfs has no %s", rel)
}

// scan finds LUNs on a host. Hosts of sessions have one target.
func (w *world) scan(host string, where []string) error {
	if len(where) != 3 {
		return fmt.Errorf("scan: got %q", where)
	}
	find := func(luns map[int]string, channel, target, parent string, of *session) {
		for _, lun := range slices.Sorted(maps.Keys(luns)) {
			if where[2] != "-" && where[2] != strconv.Itoa(lun) {
				continue
			}
			w.pending = append(w.pending, func() { w.add(host, channel, target, lun, w.disks[luns[lun]], of) })
		}
	}
	for _, s := range w.sessions {
		if s.host == host {
			find(w.portals[s.portal].targets[s.iqn], "0", "0", "", s)
		}
	}
	for wwn, luns := range w.wwns {
		if w.ports[wwn] == host && (where[1] == "-" || where[0] == "0" && where[1] == "4") {
			find(luns, "0", "4", "", nil)
		}
	}
	if !w.late {
		for _, f := range w.pending {
			f()
		}
		w.pending = nil
	}
	return nil
}

// add makes a device, as the kernel does, and joins it to a mapping where multipathd runs.
func (w *world) add(host, channel, target string, number int, disk *lun, of *session) {
	id := fmt.Sprintf("%s:%s:%s:%d", host, channel, target, number)
	if _, err := os.Stat(filepath.Join(w.dir, "sys/class/scsi_device", id)); err == nil {
		return
	}
	name := "sd" + string(rune('a'+w.nextSD))
	w.nextSD++
	w.devices[name] = disk
	if of != nil {
		of.devices = append(of.devices, name)
	}
	device := "devices/host" + host + "/" + id
	w.set(device+"/wwid", disk.wwid)
	w.set(device+"/delete", "")
	w.set(device+"/block/"+name+"/size", "6144")
	w.must(os.MkdirAll(filepath.Join(w.dir, "sys", device, "block", name, "holders"), 0o755))
	w.lay(device+"/block/"+name+"/device", device)
	w.lay("class/scsi_device/"+id+"/device", device)
	w.lay("block/"+name, device+"/block/"+name)
	w.must(os.WriteFile(filepath.Join(w.dir, "dev", name), disk.data, 0o600))
	byID := filepath.Join(w.dir, "dev/disk/by-id/scsi-"+strings.Replace(disk.wwid, "naa.", "3", 1))
	if _, err := os.Lstat(byID); err != nil {
		w.must(os.Symlink(filepath.Join(w.dir, "dev", name), byID))
	}
	if w.multi {
		w.join(name, disk)
	}
	w.tell()
}

// join adds a path to a disk's mapping, which multipathd makes for the second.
func (w *world) join(name string, disk *lun) {
	var paths []string
	for n, d := range w.devices {
		if d == disk {
			paths = append(paths, n)
		}
	}
	if len(paths) < 2 {
		return
	}
	dm := ""
	for n, wwid := range w.maps {
		if wwid == disk.wwid {
			dm = n
		}
	}
	if dm == "" {
		dm = fmt.Sprintf("dm-%d", len(w.maps))
		w.maps[dm] = disk.wwid
		w.set("block/"+dm+"/size", "6144")
		w.set("block/"+dm+"/dm/uuid", "mpath-3"+strings.TrimPrefix(disk.wwid, "naa."))
		w.must(os.WriteFile(filepath.Join(w.dir, "dev", dm), disk.data, 0o600))
	}
	for _, n := range paths {
		if _, err := os.Lstat(filepath.Join(w.dir, "sys/block", n, "holders", dm)); err != nil {
			w.lay("block/"+n+"/holders/"+dm, "block/"+dm)
		}
	}
}

// drop removes a device.
func (w *world) drop(name string) {
	device, err := filepath.EvalSymlinks(filepath.Join(w.dir, "sys/block", name, "device"))
	w.must(err)
	w.gone("sys/class/scsi_device/" + filepath.Base(device))
	w.must(os.RemoveAll(device))
	w.gone("sys/block/" + name)
	w.gone("dev/" + name)
	delete(w.devices, name)
	for _, s := range w.sessions {
		s.devices = slices.DeleteFunc(s.devices, func(n string) bool { return n == name })
	}
}

func (w *world) claimed(device string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := os.Stat(device); err != nil {
		return false, err
	}
	return w.claims(filepath.Base(device))
}

// claims says whether a device is mounted, mapped or used otherwise.
func (w *world) claims(name string) (bool, error) {
	holders, err := os.ReadDir(filepath.Join(w.dir, "sys/block", name, "holders"))
	if err == nil && len(holders) > 0 || w.busy[name] {
		return true, nil
	}
	points, _ := w.kernel.Below("/")
	for _, p := range points {
		if w.kernel.Options[p] == "disk "+name {
			return true, nil
		}
	}
	return false, nil
}

// file checks the arguments of a program that works on a device: its options, and then the device.
func (w *world) file(program string, args []string, options ...string) error {
	if len(args) != len(options)+1 || !slices.Equal(args[:len(options)], options) || w.onDevice(args[len(options)]) == nil {
		return commandtest.Exit(8, fmt.Sprintf("%s: bad usage %q", program, args))
	}
	return nil
}

// onDevice returns the disk behind a device's file, nil if there is none.
func (w *world) onDevice(path string) *lun {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := filepath.Base(path)
	if path != filepath.Join(w.dir, "dev", name) {
		return nil
	}
	if wwid := w.maps[name]; wwid != "" {
		return w.disks[wwid]
	}
	return w.devices[name]
}

func (w *world) blkid(_ []byte, args []string) ([]byte, error) {
	want := []string{"-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--"}
	if err := w.file("blkid", args, want...); err != nil {
		return nil, err
	}
	switch d := w.onDevice(args[len(want)]); {
	case d.blkid != nil:
		return nil, d.blkid
	case strings.HasPrefix(d.fs, "PTTYPE="):
		return []byte("DEVNAME=x\n" + d.fs + "\n"), nil
	case d.fs != "":
		return []byte("DEVNAME=x\nTYPE=" + d.fs + "\n"), nil
	}
	return nil, commandtest.Exit(2, "")
}

func (w *world) mkfs(_ []byte, args []string) ([]byte, error) {
	if err := w.file("mkfs.ext4", args, "-F", "-m0"); err != nil {
		return nil, err
	}
	d := w.onDevice(args[2])
	if d.fs != "" || slices.ContainsFunc(d.data, func(b byte) bool { return b == 'D' }) {
		w.t.Errorf("a file system was made on a disk with data: %s", args[2])
	}
	d.fs = "ext4"
	return nil, nil
}

func (w *world) mount(_ []byte, args []string) ([]byte, error) {
	i := slices.Index(args, "--")
	if i < 0 || len(args) != i+3 || args[0] != "-t" || w.onDevice(args[i+1]) == nil {
		return nil, commandtest.Exit(1, fmt.Sprintf("mount: bad usage %q", args))
	}
	if d := w.onDevice(args[i+1]); d.fs != args[1] {
		return nil, commandtest.Exit(32, "mount: wrong fs type, bad option, bad superblock")
	}
	if _, err := os.Stat(args[i+2]); err != nil {
		return nil, commandtest.Exit(32, "mount point does not exist")
	}
	if used, _ := w.claims(filepath.Base(args[i+1])); used {
		return nil, commandtest.Exit(32, args[i+1]+" already mounted or mount point busy")
	}
	w.kernel.Add(args[i+2], "disk "+filepath.Base(args[i+1]))
	return nil, nil
}

func (w *world) multipath(_ []byte, args []string) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(args) != 2 || args[0] != "-f" || w.maps[args[1]] == "" {
		return nil, commandtest.Exit(1, fmt.Sprintf("multipath: bad usage %q", args))
	}
	if used, _ := w.claims(args[1]); used {
		return nil, commandtest.Exit(1, args[1]+": map in use")
	}
	delete(w.maps, args[1])
	w.gone("sys/block/" + args[1])
	w.gone("dev/" + args[1])
	for name := range w.devices {
		w.gone("sys/block/" + name + "/holders/" + args[1])
	}
	return nil, nil
}

// reboot loses what a host loses.
func (w *world) reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kernel.Points, w.kernel.Options = nil, map[string]string{}
	for id := range w.sessions {
		w.end(id)
	}
	w.must(errors.Join(os.RemoveAll(filepath.Join(w.dir, "run/lock"))))
}
