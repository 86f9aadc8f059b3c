package pod

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// ContainerIDPrefix precedes the engine's id in containerStatuses.containerID.
const ContainerIDPrefix = "docker://"

// Observed is everything that the engine has of one pod. The zero value means nothing.
type Observed struct {
	UID             types.UID
	Namespace, Name string      // from the engine's labels: all that is known if the pod's API object is gone
	Grace           int64       // seconds, spec.terminationGracePeriodSeconds at creation, from the labels
	Sandboxes       []Sandbox   // newest first
	Containers      []Container // newest first
	// Unclear means that the engine did not describe everything. Such a value may be shown but not acted upon. Only ObserveAll returns it.
	Unclear bool
}

// Sandbox is an infra container, which owns the pod's network.
type Sandbox struct {
	ID        string
	Attempt   int
	Running   bool
	Unstarted bool // never started, or just being started
	CreatedAt time.Time
	PID       int          // of its process on the host while Running; 0 if unknown
	Network   string       // engine network; "host" with hostNetwork
	Addresses []netip.Addr // empty with hostNetwork
	Runtime   string       // handler of the pod's RuntimeClass; "": none
	// HostPorts are the pod's hostPorts that nothing serves yet while Running, because the engine does not publish them.
	HostPorts []HostPort
}

// HostPort is a port of the host that leads to a port of a pod.
type HostPort struct {
	IP            netip.Addr // hostIP; invalid: all addresses, unspecified: all of that family
	Port          uint16
	Protocol      v1.Protocol
	ContainerPort uint16
}

// Container is one attempt to run a container of the spec.
type Container struct {
	ID        string
	Name      string // as in the spec
	Kind      podspec.Kind
	Attempt   int    // 0, 1, ...: the restart count
	SandboxID string // "" if there is no sandbox
	Hash      string // Hash of the spec that it was created from
	State     State

	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int
	OOMKilled                        bool
	Error                            string // why the engine could not start it

	Image       string       // as in the spec at creation
	ImageID     string       // as shown in containerStatuses.imageID, e.g. docker-pullable://repo@sha256:... or docker://sha256:...
	Message     string       // termination message, at most 4096 bytes; only when Exited
	Network     string       // engine network, as for Sandbox; "container:<id>" if it shares another's
	Addresses   []netip.Addr // only if the container has its own network
	EarlierBoot bool         // it was created before the host's last boot
	HostPorts   []HostPort   // as for Sandbox
	HostPID     int          // pid on the host while Running; 0 if unknown
	// Resources are the limits that the engine applies; nil if they cannot change while the container runs.
	Resources *podspec.Resources
	// User is the identity that its first process started with (containerStatuses.user); nil if unknown, and on Windows.
	User       *v1.LinuxContainerUser
	StopSignal string // SIGTERM, ...; "" if the engine reports none
	// RecursiveReadOnly means that mounts with recursiveReadOnly IfPossible are recursively read-only.
	RecursiveReadOnly bool
}

// State is a container's state as the engine reports it.
type State string

// States.
const (
	Created State = "created" // exists but never started: left over from an interrupted start
	Running State = "running"
	Exited  State = "exited" // also: dead, or being removed
)

// EngineID is the engine's id of a sandbox or container, as a map key.
type EngineID string

// Attachments are what an Attacher knows about a pod. For ids that are missing here, the engine's data is complete.
type Attachments map[EngineID]Attachment

// Attachment is what an Attacher knows of one sandbox or container.
type Attachment struct {
	Waits     bool         // it has no network yet and must get one
	Addresses []netip.Addr // assigned by its network
	MapsPorts bool         // its network serves the pod's hostPorts
}

// Member is a sandbox or container as Attacher sees it.
type Member struct {
	ID        string
	SandboxID string // owner of its network: its own ID for a sandbox; "": it has its own network
	PID       int    // on the host; 0: it does not run, or that is not known
}

// Started reports whether the attempt got as far as a start. A container whose start failed counts.
func (c *Container) Started() bool { return c.State != Created || c.Error != "" }

// NewestSandbox returns the latest sandbox, as a pointer into o; nil if there is none.
func (o *Observed) NewestSandbox() *Sandbox {
	var newest *Sandbox
	for i := range o.Sandboxes {
		if s := &o.Sandboxes[i]; newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
	}
	return newest
}

// Attempts lists the started attempts of the named container, newest first.
func (o *Observed) Attempts(name string) []Container {
	var list []Container
	for i := range o.Containers {
		if c := &o.Containers[i]; c.Name == name && c.Started() {
			list = append(list, *c)
		}
	}
	slices.SortStableFunc(list, func(a, b Container) int { return cmp.Compare(b.Attempt, a.Attempt) })
	return list
}

// With returns o with what the network knows. It shares unchanged parts with o.
func (o Observed) With(network Attachments) Observed {
	if len(network) == 0 {
		return o
	}
	o.Sandboxes, o.Containers = slices.Clone(o.Sandboxes), slices.Clone(o.Containers)
	for i := range o.Sandboxes {
		s := &o.Sandboxes[i]
		if a, ok := network[EngineID(s.ID)]; ok {
			s.Addresses, s.HostPorts = a.complete(s.Addresses, s.HostPorts)
		}
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		if a, ok := network[EngineID(c.ID)]; ok {
			c.Addresses, c.HostPorts = a.complete(c.Addresses, c.HostPorts)
		}
	}
	return o
}

func (a Attachment) complete(addresses []netip.Addr, ports []HostPort) ([]netip.Addr, []HostPort) {
	if len(a.Addresses) > 0 {
		addresses = a.Addresses
	}
	if a.MapsPorts {
		ports = nil
	}
	return addresses, ports
}

// PodAddresses returns the pod's addresses as its status shows them: one per family, the family of the node's first address first. Empty if
// there are none.
func PodAddresses(pod *v1.Pod, observed Observed, hostIPs []netip.Addr) []netip.Addr {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	var all []netip.Addr
	if box := observed.NewestSandbox(); box != nil && box.Running {
		all = box.Addresses
	} else if box == nil {
		for _, c := range observed.Containers {
			if c.State == Running && len(c.Addresses) > 0 {
				all = c.Addresses
				break
			}
		}
	}
	v6First := len(hostIPs) > 0 && hostIPs[0].Is6() && !hostIPs[0].Is4In6()
	var out []netip.Addr
	for _, v6 := range []bool{v6First, !v6First} {
		for _, a := range all {
			if a = a.Unmap(); a.Is6() == v6 {
				out = append(out, a)
				break
			}
		}
	}
	return out
}
