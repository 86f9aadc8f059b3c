// Package cni runs CNI plugins (CNI specification 1.1) with libcni and records their results. Package network uses it.
//
//	configuration directory --Load--> network; Attachment --Add--> record, plugins, record with addresses --Del--> nothing
//
// A record is on disk before the plugins first run for a container, until they have released everything, so that an agent that is killed at any
// moment finds what it has begun.
package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
)

// Config contains the paths of plugins, their configuration and our records.
type Config struct {
	ConfDir  string   // of network configurations; the first by name is used
	BinDirs  []string // of plugins, searched in order
	StateDir string   // ours: records, and libcni's cache
	// Patience is the time limit of one call of a network's plugins; 0: a minute.
	Patience time.Duration
	Proc     string // the procfs mount point; "": /proc
	// WindowsBuild is this host's build of Windows; 0: Linux.
	WindowsBuild int
}

// Interface is the name of a pod's own network interface.
const Interface = "eth0"

// Plugins runs the plugins of the configured network. Its methods may be called concurrently, but not for the same container.
type Plugins struct {
	cfg Config
	lib *libcni.CNIConfig
	// calls is read-locked while an Add runs: a network's garbage collection must know everything in use.
	calls sync.RWMutex

	mu      sync.Mutex
	list    *libcni.NetworkConfigList // nil: there is no usable one
	records map[string]Attachment     // by container id, as on disk
}

// New reads the records of former runs, ends plugins that a killed agent left running, and returns a Plugins without a network.
func New(cfg Config) (*Plugins, error) {
	cfg.Patience, cfg.Proc = cmp.Or(cfg.Patience, time.Minute), cmp.Or(cfg.Proc, "/proc")
	p := &Plugins{cfg: cfg, lib: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, filepath.Join(cfg.StateDir, "cache"), &runner{})}
	var err error
	if p.records, err = readRecords(p.recordDir()); err != nil {
		return nil, err
	}
	for id, a := range p.records {
		if a.Done {
			continue
		}
		if err := command.EndFamily(mark(id)); err != nil {
			return nil, fmt.Errorf("cannot end a CNI plugin of a previous run: %w", err)
		}
	}
	return p, nil
}

// Load reads the configuration directory again and returns the network's name and file. The error says what is wrong with the directory, the file or
// the plugins; no container is attached before a Load succeeds.
func (p *Plugins) Load(ctx context.Context) (name, file string, err error) {
	list, file, err := p.cfg.load()
	if err == nil && atLeast(list, "1.1.0") {
		if err = p.call(ctx, func(ctx context.Context) error { return p.lib.GetStatusNetworkList(ctx, list) }); err != nil {
			err = fmt.Errorf("the plugins of %s are not ready: %w", file, err)
		}
	}
	if err != nil {
		list = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = list
	if list == nil {
		return "", file, err
	}
	return list.Name, file, nil
}

// Find returns the name and the file of the network that Load would choose, without checking that its plugins are ready.
func Find(cfg Config) (name, file string, err error) {
	list, file, err := cfg.load()
	if err != nil {
		return "", file, err
	}
	return list.Name, file, nil
}

// load returns the configured network: the first readable file by name.
func (cfg Config) load() (list *libcni.NetworkConfigList, file string, err error) {
	dir := cfg.ConfDir
	files, err := libcni.ConfFiles(dir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, "", fmt.Errorf("cannot read the CNI configuration directory %s: %w", dir, err)
	}
	slices.Sort(files)
	var broken []error
	for _, file := range files {
		list, err := read(file)
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", filepath.Base(file), err))
			continue
		}
		return list, file, cfg.suits(list, file)
	}
	if len(broken) == 0 {
		return nil, "", fmt.Errorf("the CNI configuration directory %s (--cni-conf-dir) has no network; want a file *.conflist, *.conf or *.json", dir)
	}
	return nil, "", fmt.Errorf("the CNI configuration directory %s (--cni-conf-dir) has no usable network: %w", dir, errors.Join(broken...))
}

// read reads a list of plugins, or a file with a single plugin as before CNI 0.3.
func read(file string) (*libcni.NetworkConfigList, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(file) == ".conflist" {
		return libcni.NetworkConfFromBytes(data)
	}
	one, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 files of older instructions have that form
	return libcni.ConfListFromConf(one)
}

func atLeast(list *libcni.NetworkConfigList, want string) bool {
	ok, err := version.GreaterThanOrEqualTo(list.CNIVersion, want)
	return err == nil && ok
}

// Add has the network's plugins attach a container and returns its addresses. A container that is attached to the same namespace keeps its
// attachment; the remains of another attempt are released first.
func (p *Plugins) Add(ctx context.Context, a Attachment) ([]netip.Addr, error) {
	p.calls.RLock()
	defer p.calls.RUnlock()
	p.mu.Lock()
	old, known := p.records[a.ContainerID]
	list := p.list
	p.mu.Unlock()
	if known && old.Done && old.Netns == a.Netns {
		return old.Addresses, nil
	}
	if list == nil {
		return nil, fmt.Errorf("there is no CNI network: see %s (--cni-conf-dir)", p.cfg.ConfDir)
	}
	if known {
		if err := p.Del(ctx, a.ContainerID, a.Netns); err != nil {
			return nil, err
		}
	}
	a.Network, a.List, a.BinDirs, a.Origin = list.Name, list.Bytes, p.cfg.BinDirs, p.origin(a.Netns)
	if err := p.keep(a); err != nil {
		return nil, err
	}
	err := p.call(ctx, func(ctx context.Context) error {
		result, err := p.lib.AddNetworkList(ctx, list, a.runtimeConf(a.Netns))
		if err == nil {
			a.Addresses, err = addresses(result)
		}
		return err
	})
	if err == nil {
		a.Done = true
		return a.Addresses, p.keep(a)
	}
	err = fmt.Errorf("cannot attach to the CNI network %q: %w", list.Name, err)
	if ctx.Err() != nil { // the caller releases it
		return nil, err
	}
	return nil, errors.Join(err, p.Del(ctx, a.ContainerID, a.Netns))
}

// Del has the plugins release a container's network; netns is its namespace, or "" if that is gone. A namespace counts as gone if its process has
// ended and another has the PID by now: the plugins would take down another pod's network. A container without a record is not an error. For a
// container that shares another's namespace, Del removes only the record: the plugins would disconnect the other one.
func (p *Plugins) Del(ctx context.Context, id, netns string) error {
	p.mu.Lock()
	a, known := p.records[id]
	p.mu.Unlock()
	if !known {
		return nil
	}
	if !a.Borrowed {
		list, err := libcni.NetworkConfFromBytes(a.List)
		if err != nil {
			return fmt.Errorf("cannot read how container %s was attached: %w", id, err)
		}
		if err := p.call(ctx, func(ctx context.Context) error {
			return p.lib.DelNetworkList(ctx, list, a.runtimeConf(p.still(a, netns)))
		}); err != nil {
			return fmt.Errorf("cannot detach from the CNI network %q: %w", a.Network, err)
		}
	}
	return p.forget(a)
}

// Check asks the plugins whether a container is still connected correctly (CHECK, CNI 0.4 and later); nil if they cannot check.
func (p *Plugins) Check(ctx context.Context, id string) error {
	p.mu.Lock()
	a, known := p.records[id]
	p.mu.Unlock()
	if !known || !a.Done || a.Borrowed {
		return nil
	}
	list, err := libcni.NetworkConfFromBytes(a.List)
	if err != nil || !atLeast(list, "0.4.0") {
		return err
	}
	return p.call(ctx, func(ctx context.Context) error { return p.lib.CheckNetworkList(ctx, list, a.runtimeConf(a.Netns)) })
}

// Existing returns which of ids are containers of the engine. The result may have other containers too.
type Existing func(ctx context.Context, ids []string) (map[string]bool, error)

// Collect releases the network of removed containers. It calls existing after reading the records, since a container exists before it is attached. Then
// it runs the network's own garbage collection, unless a container is being attached.
func (p *Plugins) Collect(ctx context.Context, existing Existing) error {
	all := p.Records()
	if len(all) == 0 {
		return nil
	}
	var ids []string
	for _, a := range all {
		ids = append(ids, a.ContainerID)
	}
	there, err := existing(ctx, ids)
	if err != nil {
		return err
	}
	var errs []error
	gone := 0
	for _, a := range all {
		if there[a.ContainerID] {
			continue
		}
		klog.InfoS("Releasing the network of a removed container", "container", a.ContainerID, "pod", a.Namespace+"/"+a.Name)
		errs = append(errs, p.Del(ctx, a.ContainerID, nowhere(a)))
		gone++
	}
	if gone > 0 {
		errs = append(errs, p.collectNetwork(ctx))
	}
	return errors.Join(errs...)
}

// nowhere is the Netns of a removed container. On Windows its value outlives the container; without it win-bridge and win-overlay leave the endpoint
// behind (CNI plugins pkg/hns endpoint_windows.go RemoveHnsEndpoint).
func nowhere(a Attachment) string {
	if a.Netns == Unshared {
		return Unshared
	}
	return ""
}

// collectNetwork passes the attachments in use to the network (GC, CNI 1.1).
func (p *Plugins) collectNetwork(ctx context.Context) error {
	if !p.calls.TryLock() {
		return nil
	}
	defer p.calls.Unlock()
	p.mu.Lock()
	list := p.list
	p.mu.Unlock()
	if list == nil || !atLeast(list, "1.1.0") {
		return nil
	}
	args := &libcni.GCArgs{}
	for _, a := range p.Records() {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: a.ContainerID, IfName: Interface})
	}
	return p.call(ctx, func(ctx context.Context) error { return p.lib.GCNetworkList(ctx, list, args) })
}

// call limits the time of a call to plugins.
func (p *Plugins) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Patience,
		fmt.Errorf("it did not end within %s; killed it and its child processes", p.cfg.Patience))
	defer cancel()
	return do(ctx)
}

// addresses returns the container's own addresses from a result, in the plugins' order.
func addresses(result types.Result) (out []netip.Addr, err error) {
	all, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugins' result: %w", err)
	}
	for _, ip := range all.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(all.Interfaces) && all.Interfaces[*i].Sandbox == "" {
			continue // the host's end
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			out = append(out, addr.Unmap())
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the plugins returned no address for the pod")
	}
	return out, nil
}
