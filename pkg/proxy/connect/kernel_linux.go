package connect

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// layout is the version of the maps' layout. A proxy with another layout creates its own maps, fills them, switches the
// links to its programs, and removes the old maps.
var layout = "v2"

// hook is a place where the kernel runs one of our programs.
type hook struct {
	name    string
	kind    ebpf.ProgramType
	attach  ebpf.AttachType
	program func(handles) asm.Instructions
}

// hooks are in the order of attachment: first those that show the front, last those that redirect from it.
var hooks = []hook{
	{"release", ebpf.CGroupSock, ebpf.AttachCgroupInetSockRelease, release},
	{"getpeername4", ebpf.CGroupSockAddr, ebpf.AttachCgroupInet4GetPeername, func(h handles) asm.Instructions { return backward(h, false, false) }},
	{"getpeername6", ebpf.CGroupSockAddr, ebpf.AttachCgroupInet6GetPeername, func(h handles) asm.Instructions { return backward(h, true, false) }},
	{"recvmsg4", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP4Recvmsg, func(h handles) asm.Instructions { return backward(h, false, true) }},
	{"recvmsg6", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Recvmsg, func(h handles) asm.Instructions { return backward(h, true, true) }},
	{"sendmsg4", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP4Sendmsg, func(h handles) asm.Instructions { return forward(h, false, true) }},
	{"sendmsg6", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg, func(h handles) asm.Instructions { return forward(h, true, true) }},
	{"connect4", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, func(h handles) asm.Instructions { return forward(h, false, false) }},
	{"connect6", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Connect, func(h handles) asm.Instructions { return forward(h, true, false) }},
}

// Capacities of the programs' maps.
const (
	maxClients = 1 << 15 // for session affinity, as in the relay
	// maxConnected is the number of UDP sockets that may be connected to Services at one time, maxConnectedOfClient
	// that of one client. The relay serves sockets beyond that.
	maxConnected         = 1 << 16
	maxConnectedOfClient = maxConnected / 8
	maxCounted           = 1 << 14 // clients whose sockets are counted; the kernel evicts the least recently used
	// flowsOfSocket is the number of Services to which one unconnected UDP socket may send; a power of two. One more
	// replaces the oldest.
	flowsOfSocket = 16
)

// mapPrefix is the prefix of our maps' names.
const mapPrefix = "winkube_"

// specs returns the maps. Those that grow with the Table are not preallocated.
func specs() map[string]*ebpf.MapSpec {
	hash := func(key, value uintptr, most int) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(key), ValueSize: uint32(value), MaxEntries: uint32(most), Flags: unix.BPF_F_NO_PREALLOC}
	}
	lru := func(key, value uintptr, most int) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: uint32(key), ValueSize: uint32(value), MaxEntries: uint32(most)}
	}
	word := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	storage := func(size uintptr) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: ebpf.SkStorage, KeySize: 4, ValueSize: uint32(size), Flags: unix.BPF_F_NO_PREALLOC, Key: word, Value: &btf.Array{Index: word, Type: word, Nelems: uint32(size / 4)}}
	}
	endpoint := unsafe.Sizeof(Endpoint{})
	out := map[string]*ebpf.MapSpec{
		"fronts":    hash(unsafe.Sizeof(Key{}), unsafe.Sizeof(Front{}), MaxFronts),
		"slots":     hash(unsafe.Sizeof(SlotKey{}), endpoint, MaxEndpoints),
		"members":   hash(unsafe.Sizeof(MemberKey{}), 4, MaxEndpoints),
		"affinity":  lru(unsafe.Sizeof(affinityKey{}), unsafe.Sizeof(affinityValue{}), maxClients),
		"connected": hash(8, unsafe.Sizeof(pair{}), maxConnected),
		"clients":   lru(8, 8, maxCounted),
		"counts":    {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: counters},
		"sessions":  storage(unsafe.Sizeof(pair{})),
		"flows":     storage(unsafe.Sizeof(flows{})),
	}
	for name, spec := range out {
		spec.Name, spec.Pinning = mapPrefix+name, ebpf.PinByName
	}
	return out
}

// linuxKernel implements Kernel for one cgroup and all below it.
type linuxKernel struct {
	cgroup   string // a directory of the cgroup2 file system
	inode    uint64 // of the cgroup
	dir      string // directory of the pinned maps and links
	maps     map[string]*ebpf.Map
	programs map[string]*ebpf.Program
	links    map[string]link.Link
	former   []hook // hooks whose link has a program of the previous proxy, until Attach
	handles  handles
	mu       sync.RWMutex // EndFlows runs concurrently with other calls; Close waits for it
}

// NewKernel returns the Kernel for a cgroup and all below it; "": all processes of this host.
func NewKernel(cgroup string) Kernel { return &linuxKernel{cgroup: cgroup} }

// Refuses implements Kernel.
func (k *linuxKernel) Refuses() bool { return k.handles.refuses }

// Open implements Kernel.
func (k *linuxKernel) Open() (err error) {
	if k.links != nil {
		return nil
	}
	if err := k.locate(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = k.Remove()
		}
	}()
	if err = mountPins(); err != nil {
		return err
	}
	if err = os.MkdirAll(filepath.Join(k.dir, layout), 0o700); err != nil {
		return err
	}
	return k.openAll()
}

// openAll opens maps, programs and links until one fails.
func (k *linuxKernel) openAll() (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.maps, k.programs, k.links = map[string]*ebpf.Map{}, map[string]*ebpf.Program{}, map[string]link.Link{}
	list := specs()
	for _, name := range slices.Sorted(maps.Keys(list)) { // sorted, so that a failure always logs the same name
		if err := k.openMap(name, list[name]); err != nil {
			return fmt.Errorf("BPF map %s: %w", name, err)
		}
	}
	fd := func(name string) int { return k.maps[name].FD() }
	k.handles = handles{fronts: fd("fronts"), slots: fd("slots"), members: fd("members"), affinity: fd("affinity"), flows: fd("flows"),
		sessions: fd("sessions"), connected: fd("connected"), clients: fd("clients"), counts: fd("counts"), refuses: features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval) == nil, connectsUDP: canEndFlows() == nil}
	for _, h := range hooks {
		k.programs[h.name], err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: programName(h), Type: h.kind, AttachType: h.attach, License: "Apache-2.0",
			Instructions: h.program(k.handles)})
		if err != nil {
			return fmt.Errorf("BPF program %s: %w", h.name, err)
		}
	}
	for _, h := range hooks {
		if err = k.openLink(h); err != nil {
			return fmt.Errorf("BPF program %s at %s: %w", h.name, k.cgroup, err)
		}
	}
	if len(k.former) > 0 {
		return nil // their maps are still in use
	}
	k.detachStrangers()
	return k.removeOthers()
}

// openMap takes over a map of a previous proxy, or creates it. It replaces a map that does not fit.
func (k *linuxKernel) openMap(name string, spec *ebpf.MapSpec) error {
	dir := filepath.Join(k.dir, layout)
	m, err := ebpf.NewMapWithOptions(spec, ebpf.MapOptions{PinPath: dir})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		if err = os.Remove(filepath.Join(dir, spec.Name)); err == nil {
			m, err = ebpf.NewMapWithOptions(spec, ebpf.MapOptions{PinPath: dir})
		}
	}
	if err == nil {
		k.maps[name] = m
	}
	return err
}

func (k *linuxKernel) pin(h hook) string { return filepath.Join(k.dir, h.name) }

// openLink takes over the link of a previous proxy, or attaches our program.
func (k *linuxKernel) openLink(h hook) error {
	have, err := link.LoadPinnedLink(k.pin(h), nil)
	if err == nil {
		if k.attached(have) {
			k.links[h.name], k.former = have, append(k.former, h)
			return nil
		}
		_ = have.Close()
	}
	return k.replace(h)
}

// Attach implements Kernel. There is no gap between the programs.
func (k *linuxKernel) Attach() error {
	if len(k.former) == 0 {
		return nil
	}
	for _, h := range k.former {
		if k.links[h.name].Update(k.programs[h.name]) == nil {
			continue
		}
		_ = k.links[h.name].Close()
		delete(k.links, h.name)
		if err := k.replace(h); err != nil {
			return fmt.Errorf("BPF program %s at %s: %w", h.name, k.cgroup, err)
		}
	}
	k.former = nil
	k.detachStrangers()
	return k.removeOthers()
}

// replace removes a stale pin and attaches our program.
func (k *linuxKernel) replace(h hook) error {
	if err := os.Remove(k.pin(h)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return k.attach(h)
}

func (k *linuxKernel) attach(h hook) error {
	made, err := link.AttachCgroup(link.CgroupOptions{Path: k.cgroup, Attach: h.attach, Program: k.programs[h.name]})
	if err != nil {
		return err
	}
	if err := made.Pin(k.pin(h)); err != nil {
		_ = made.Close()
		return fmt.Errorf("cannot keep it beyond this process: %w", err)
	}
	k.links[h.name] = made
	return nil
}

// attached reports whether a link is still attached to our cgroup.
func (k *linuxKernel) attached(l link.Link) bool {
	info, err := l.Info()
	return err == nil && info.Cgroup() != nil && info.Cgroup().CgroupId == k.inode
}

// Check implements Kernel.
func (k *linuxKernel) Check() (again []string, err error) {
	inode, err := inodeOf(k.cgroup)
	if err != nil || inode != k.inode {
		return nil, fmt.Errorf("cgroup %s was removed", k.cgroup)
	}
	for _, spec := range specs() {
		if _, err := os.Stat(filepath.Join(k.dir, layout, spec.Name)); err != nil {
			return nil, fmt.Errorf("the pins of the BPF maps were removed: %w", err)
		}
	}
	for _, h := range hooks {
		_, pinned := os.Stat(k.pin(h))
		if k.attached(k.links[h.name]) && pinned == nil {
			continue
		}
		_ = k.links[h.name].Close()
		_ = os.Remove(k.pin(h))
		if err := k.attach(h); err != nil {
			return again, err
		}
		again = append(again, h.name)
	}
	return again, nil
}

// Read implements Kernel.
func (k *linuxKernel) Read() (*Contents, error) {
	if k.maps == nil {
		return nil, errors.New("no BPF map is open")
	}
	c := &Contents{map[Key]Front{}, map[SlotKey]Endpoint{}, map[MemberKey]uint32{}}
	return c, errors.Join(readAll(k.maps["fronts"], c.Fronts), readAll(k.maps["slots"], c.Slots), readAll(k.maps["members"], c.Members))
}

// readAll copies a map.
func readAll[K comparable, V any](m *ebpf.Map, to map[K]V) error {
	return eachEntry(m, func(key K, value V) { to[key] = value })
}

// eachEntry reads a map in batches of some thousand entries.
func eachEntry[K comparable, V any](m *ebpf.Map, do func(K, V)) error {
	const batch = 4096
	keys, values := make([]K, batch), make([]V, batch)
	for cursor := (ebpf.MapBatchCursor{}); ; {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			do(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Do implements Kernel.
func (k *linuxKernel) Do(op Op) error {
	var err error
	switch op.Kind {
	case PutMember:
		return k.maps["members"].Put(&op.Member, &op.State)
	case PutSlot:
		return k.maps["slots"].Put(&op.Slot, &op.Endpoint)
	case PutFront:
		op.Front.Turn = rand.Uint32() // random, so that hosts do not all start with the same endpoint after each change
		return k.maps["fronts"].Put(&op.Key, &op.Front)
	case DeleteFront:
		err = k.maps["fronts"].Delete(&op.Key)
	case DeleteSlot:
		err = k.maps["slots"].Delete(&op.Slot)
	case DeleteMember:
		err = k.maps["members"].Delete(&op.Member)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Decisions implements Kernel.
func (k *linuxKernel) Decisions() (tcp, udp, refused uint64) {
	if k.maps == nil {
		return 0, 0, 0
	}
	for index, to := range map[uint32]*uint64{countTCP: &tcp, countUDP: &udp, countRefused: &refused} {
		var each []uint64
		if err := k.maps["counts"].Lookup(&index, &each); err != nil {
			continue
		}
		for _, n := range each {
			*to += n
		}
	}
	return tcp, udp, refused
}

// Uses implements Kernel.
func (k *linuxKernel) Uses() []Use {
	if k.maps == nil {
		return nil
	}
	var sockets, most, sticky int
	err := errors.Join(
		eachEntry(k.maps["connected"], func(uint64, pair) { sockets++ }),
		eachEntry(k.maps["clients"], func(_ uint64, count int64) { most = max(most, int(count)) }),
		eachEntry(k.maps["affinity"], func(affinityKey, affinityValue) { sticky++ }))
	if err != nil {
		klog.V(2).InfoS("Cannot count the entries of the BPF maps", "err", err)
		return nil
	}
	return []Use{{"udp_sockets", sockets, maxConnected}, {"udp_sockets_of_client", most, maxConnectedOfClient}, {"affinity_clients", sticky, maxClients}}
}

// Close implements Kernel.
func (k *linuxKernel) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.links {
		_ = l.Close()
	}
	for _, p := range k.programs {
		_ = p.Close()
	}
	for _, m := range k.maps {
		_ = m.Close()
	}
	k.links, k.programs, k.maps, k.former = nil, nil, nil, nil
}

// Remove implements Kernel. It first stops redirecting clients, then stops showing them the front.
func (k *linuxKernel) Remove() error {
	if err := k.locate(); err != nil {
		return nil // the cgroup does not exist, so no program is attached
	}
	k.Close()
	defer k.detachStrangers()
	if _, err := os.Stat(k.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return removePins(k.dir)
}

// detachStrangers detaches our programs that are attached to the cgroup by other links: those of a proxy whose pins
// cannot be seen or changed from here. They would use stale maps. It needs CAP_SYS_ADMIN.
func (k *linuxKernel) detachStrangers() {
	ours := map[link.ID]bool{}
	for _, l := range k.links {
		if info, err := l.Info(); err == nil {
			ours[info.ID] = true
		}
	}
	names := map[string]bool{}
	for _, h := range hooks {
		names[programName(h)] = true
	}
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		info, err := all.Link.Info()
		if err != nil || info.Cgroup() == nil || info.Cgroup().CgroupId != k.inode || ours[info.ID] {
			continue
		}
		program, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			continue
		}
		if of, err := program.Info(); err == nil && names[of.Name] && usesOurMaps(of) {
			_ = all.Link.Detach()
		}
		_ = program.Close()
	}
}

// usesOurMaps reports whether a program uses one of our maps: its name alone proves nothing.
func usesOurMaps(of *ebpf.ProgramInfo) bool {
	ids, _ := of.MapIDs()
	return slices.ContainsFunc(ids, func(id ebpf.MapID) bool {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false
		}
		defer m.Close()
		info, err := m.Info()
		return err == nil && strings.HasPrefix(info.Name, mapPrefix)
	})
}

// programName returns the name as the kernel truncates it.
func programName(h hook) string {
	const most = 15
	name := "wk_" + h.name
	return name[:min(len(name), most)]
}

func removePins(dir string) error {
	var errs []error
	for _, h := range slices.Backward(hooks) {
		path := filepath.Join(dir, h.name)
		if l, err := link.LoadPinnedLink(path, nil); err == nil {
			_ = l.Detach() // another running proxy may hold it too
			_ = l.Close()
		}
	}
	errs = append(errs, os.RemoveAll(dir))
	_ = os.Remove(filepath.Dir(dir)) // fails while another cgroup has pins
	return errors.Join(errs...)
}

// removeOthers removes maps of other layouts, and the pins of cgroups that are gone.
func (k *linuxKernel) removeOthers() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != layout {
			err = errors.Join(err, os.RemoveAll(filepath.Join(k.dir, e.Name())))
		}
	}
	dirs, _ := os.ReadDir(filepath.Dir(k.dir))
	for _, d := range dirs {
		dir := filepath.Join(filepath.Dir(k.dir), d.Name())
		l, failed := link.LoadPinnedLink(filepath.Join(dir, hooks[len(hooks)-1].name), nil)
		if failed != nil {
			continue // it is being created
		}
		info, failed := l.Info()
		if failed == nil && info.Cgroup() != nil && info.Cgroup().CgroupId == 0 && dir != k.dir {
			_ = removePins(dir)
		}
		_ = l.Close()
	}
	return err
}
