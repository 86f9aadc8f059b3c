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

// ContainerIDPrefix stands before the engine's id in containerStatuses.containerID.
const ContainerIDPrefix = "docker://"

// Observed is everything that the engine has of one pod. The zero value is "nothing".
type Observed struct {
	UID             types.UID
	Namespace, Name string      // from the engine's labels: all that is known of a pod whose API object is gone
	Grace           int64       // seconds, spec.terminationGracePeriodSeconds at creation, from the labels
	Sandboxes       []Sandbox   // newest first
	Containers      []Container // newest first
	// Unclear says that the engine did not describe all of it: it shows what is there, and is nothing to act upon. From ObserveAll alone.
	Unclear bool
}

// Sandbox is an infra container, the owner of the pod's network.
type Sandbox struct {
	ID        string
	Attempt   int
	Running   bool
	Unstarted bool // made and never started, or just being started
	CreatedAt time.Time
	PID       int          // of its process on the host while Running, 0 where unknown
	Network   string       // of the engine; "host" with hostNetwork
	Addresses []netip.Addr // empty with hostNetwork
	Runtime   string       // handler of the pod's RuntimeClass; "": none
	// HostPorts are those of the pod that are not served yet while Running: the engine publishes none of them.
	HostPorts []HostPort
}

// HostPort is a port of the host that leads to one of a pod.
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
	SandboxID string // "" where there is no sandbox
	Hash      string // Hash of the spec it was made from
	State     State

	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int
	OOMKilled                        bool
	Error                            string // why the engine could not start it

	Image       string       // as in the spec at creation
	ImageID     string       // as shown in containerStatuses.imageID, e.g. docker-pullable://repo@sha256:... or docker://sha256:...
	Message     string       // termination message, at most 4096 bytes; only when Exited
	Network     string       // of the engine, as for Sandbox; "container:<id>" where it is another's
	Addresses   []netip.Addr // only where the container has its own network
	EarlierBoot bool         // it was made before the host's last boot
	HostPorts   []HostPort   // as for Sandbox, likewise
	HostPID     int          // pid on the host while Running, 0 where unknown
	// Resources are what the engine holds it to; nil where it cannot be changed while it runs.
	Resources *podspec.Resources
	// User is as whom its first process began (containerStatuses.user); nil where that is not known, and on Windows.
	User       *v1.LinuxContainerUser
	StopSignal string // SIGTERM, ...; "" where the engine has none
	// RecursiveReadOnly says that its mounts that were to be recursively read-only if possible are.
	RecursiveReadOnly bool
}

// State is what the engine says of a container.
type State string

// States.
const (
	Created State = "created" // exists, was never started: a leftover of a start that was cut short
	Running State = "running"
	Exited  State = "exited" // also: dead, or being removed
)

// EngineID is the engine's id of a sandbox or container, as a key.
type EngineID string

// Attachments are what an Attacher knows of a pod. Of what is not in it the engine says all that there is.
type Attachments map[EngineID]Attachment

// Attachment is what an Attacher knows of one sandbox or container.
type Attachment struct {
	Waits     bool         // it has no network yet, and is to be given one
	Addresses []netip.Addr // that its network gave it
	MapsPorts bool         // its network serves the pod's hostPorts
}

// Member is a sandbox or container as Attacher knows it.
type Member struct {
	ID        string
	SandboxID string // whose network it shares; its own ID for a sandbox; "": it has its own
	PID       int    // on the host; 0: it does not run, or that is not known
}

// Started says whether the attempt got as far as a start: a container whose start failed did.
func (c *Container) Started() bool { return c.State != Created || c.Error != "" }

// NewestSandbox is the sandbox made last; nil: there is none. It belongs to o.
func (o *Observed) NewestSandbox() *Sandbox {
	var newest *Sandbox
	for i := range o.Sandboxes {
		if s := &o.Sandboxes[i]; newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
	}
	return newest
}

// Attempts lists the started attempts of the container of that name, newest first.
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

// With is o with what the network knows. It shares with o what is the same.
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

// PodAddresses are the pod's addresses as its status shows them: one of each family, that of the node's first address first. Empty
// while there is none.
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
