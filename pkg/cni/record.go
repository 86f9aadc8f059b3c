package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"k8s.io/klog/v2"
)

// Attachment is the network of one container. Add sets the fields below Borrowed.
type Attachment struct {
	ContainerID string // of the engine
	// Netns is CNI_NETNS: on Linux the path of the namespace, on Windows Unshared or NetnsOf(another).
	Netns                string
	Namespace, Name, UID string        // of the pod
	SandboxID            string        // K8S_POD_INFRA_CONTAINER_ID
	Ports                []PortMapping `json:",omitempty"`
	Bandwidth            *Bandwidth    `json:",omitempty"`
	DNS                  *DNS          `json:",omitempty"` // on Windows, where it belongs to the endpoint
	// Sysctls are the pod's sysctls for its own interface, as paths below /proc/sys: net/ipv4/conf/eth0/forwarding. Plugins do not know them.
	Sysctls map[string]string `json:",omitempty"`
	// Borrowed says that Netns is the namespace of another container, which has its own Attachment.
	Borrowed bool

	Origin    string          `json:",omitempty"` // of Netns, if that is a process's
	Network   string          // its name
	List      json.RawMessage // its configuration
	BinDirs   []string        `json:",omitempty"` // where its plugins were
	Addresses []netip.Addr
	Done      bool // false: plugins may have done some of the work
}

// Unshared is the Netns of a Windows container with its own network.
const Unshared = "none"

// sharing begins the Netns of a Windows container that shares another's network.
const sharing = "container:"

// NetnsOf is the Netns of a Windows container that shares the network of container.
func NetnsOf(container string) string { return sharing + container }

// SharedNetns returns the container that owns the network netns; ok is false if it is the container's own.
func SharedNetns(netns string) (container string, ok bool) { return strings.CutPrefix(netns, sharing) }

// PortMapping is an entry of the capability portMappings (CNI conventions).
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp, sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// Bandwidth is the capability bandwidth (CNI conventions): bits per second and bits; 0: no limit.
type Bandwidth struct {
	IngressRate  int64 `json:"ingressRate,omitempty"`
	IngressBurst int64 `json:"ingressBurst,omitempty"`
	EgressRate   int64 `json:"egressRate,omitempty"`
	EgressBurst  int64 `json:"egressBurst,omitempty"`
}

// DNS is the capability dns (CNI conventions) of win-bridge and win-overlay.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// runtimeConf converts the Attachment for libcni, which passes a capability's arguments only to plugins that have it.
func (a *Attachment) runtimeConf(netns string) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: a.ContainerID, NetNS: netns, IfName: Interface, CapabilityArgs: map[string]any{},
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", a.Namespace}, {"K8S_POD_NAME", a.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", a.SandboxID}, {"K8S_POD_UID", a.UID}},
	}
	if len(a.Ports) > 0 {
		rt.CapabilityArgs["portMappings"] = a.Ports
	}
	if a.Bandwidth != nil {
		rt.CapabilityArgs["bandwidth"] = a.Bandwidth
	}
	if a.DNS != nil {
		rt.CapabilityArgs["dns"] = *a.DNS
	}
	return rt
}

// Records lists all attachments, including incomplete ones, sorted by container.
func (p *Plugins) Records() []Attachment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.records), func(a, b Attachment) int { return strings.Compare(a.ContainerID, b.ContainerID) })
}

// Attached returns the addresses of a container that is attached to netns. ok is false if it is not, or not completely.
func (p *Plugins) Attached(id, netns string) (addrs []netip.Addr, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.records[id]; a.Done && a.Netns == netns {
		return a.Addresses, true
	}
	return nil, false
}

// MapsPorts says whether a plugin of a container's network has the capability portMappings.
func (p *Plugins) MapsPorts(id string) bool {
	p.mu.Lock()
	list := p.records[id].List
	p.mu.Unlock()
	var conf struct {
		Plugins []struct {
			Capabilities map[string]bool `json:"capabilities"`
		} `json:"plugins"`
	}
	if json.Unmarshal(list, &conf) != nil {
		return false
	}
	for _, plugin := range conf.Plugins {
		if plugin.Capabilities["portMappings"] {
			return true
		}
	}
	return false
}

func (p *Plugins) recordDir() string { return recordsIn(p.cfg.StateDir) }

// StateIn is the Config.StateDir of a kubelet with that directory.
func StateIn(rootDir string) string { return filepath.Join(rootDir, "cni") }

func recordsIn(stateDir string) string { return filepath.Join(stateDir, "attachments") }

// keep writes a record atomically.
func (p *Plugins) keep(a Attachment) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.recordDir(), 0o700); err != nil {
		return fmt.Errorf("cannot record how containers are attached: %w", err)
	}
	path := filepath.Join(p.recordDir(), a.ContainerID+".json")
	err = os.WriteFile(path+".new", data, 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("cannot record how a container is attached: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records[a.ContainerID] = a
	return nil
}

// forget removes a record, and libcni's cached result if no plugin was asked to release anything.
func (p *Plugins) forget(a Attachment) error {
	paths := []string{filepath.Join(p.recordDir(), a.ContainerID+".json")}
	if a.Borrowed {
		paths = append(paths, filepath.Join(p.cfg.StateDir, "cache", "results", a.Network+"-"+a.ContainerID+"-"+Interface))
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove the record of how a container was attached: %w", err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.records, a.ContainerID)
	return nil
}

// readRecords reads the records of earlier runs. An unreadable file is not ours: it is logged and left alone.
func readRecords(dir string) (map[string]Attachment, error) {
	out := map[string]Attachment{}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		var a Attachment
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &a)
		}
		if err == nil && a.ContainerID+".json" != filepath.Base(file) {
			err = fmt.Errorf("it is about container %q", a.ContainerID)
		}
		if err != nil {
			klog.ErrorS(err, "Cannot read how a container was attached to its CNI network; its address may stay in use until this file is removed", "file", file)
			continue
		}
		out[a.ContainerID] = a
	}
	return out, nil
}
