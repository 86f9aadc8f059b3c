// Package pod has the nouns of the kubelet's flow and the interfaces between its parts. It starts no goroutines and does no I/O.
//
//	source.Source -> worker.Manager -> one worker per UID: plan.Plan(pod, seen, now) -> steps -> Runtime, Volumes, Network
//	                                                       plan.Status(pod, seen, now) -> StatusWriter
//	                                   start.Resolver: what one container needs before its start
//
// Each of these parts is a package below this one. Packages docker, volume, network and kubeclient implement the interfaces. The worker has
// its own package because it calls plan, which imports this one, and Go forbids import cycles.
package pod

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// Platform is what Plan and the engine's Convert need to know about the host. It is a value, so that tests cover every platform on any
// machine.
type Platform struct {
	OS   string // "linux" or "windows", as in runtime.GOOS and the label kubernetes.io/os
	Arch string // as in runtime.GOARCH
	// Build is the Windows build number (14393 is Server 2016, 17763 is 2019, 20348 is 2022, 26100 is 2025); 0 on Linux.
	Build int
	// SharedNetwork means that a container can join another's network. False on Windows before 1709 (build 16299): a pod there has one
	// container and no sandbox, and uses that container's address.
	SharedNetwork bool
	// HyperVContainer means that podspec.IsolationAnnotation chooses the isolation of Windows containers (feature gate of that name).
	HyperVContainer bool
}

// socketsBuild is the first Windows with Unix sockets. Source: Microsoft "AF_UNIX comes to Windows".
const socketsBuild = 17063

// NoSockets says why the host has no Unix sockets, by which CSI drivers serve; nil: it has.
func (p Platform) NoSockets() error {
	if p.OS != "windows" || p.Build >= socketsBuild {
		return nil
	}
	return fmt.Errorf("CSI drivers serve on Unix sockets, which Windows has from Server 2019 on (build %d); this host has build %d", socketsBuild, p.Build)
}

// ProbeResult is the outcome of a probe.
type ProbeResult struct {
	OK      bool
	Warning bool   // with OK: it passed, and Detail says what is unusual
	Detail  string // what Events show
}

// ProbeTarget is where a probe goes.
type ProbeTarget struct {
	ContainerID string
	PodIP       netip.Addr
	Ports       []v1.ContainerPort // to resolve named ports
	Env         []Env
	// The probed container, and the kind of probe: Startup, Liveness or Readiness.
	Pod             *v1.Pod
	Container, Kind string
}

// EngineNetwork is an engine network on which sandboxes are created. Package network decides what it is, package docker maintains it.
type EngineNetwork struct {
	Name     string
	ID       string // set by the engine
	Driver   string // bridge; transparent, l2bridge, nat, overlay on Windows
	Subnets  []netip.Prefix
	Gateways []netip.Addr // one per subnet, same order
	Options  map[string]string
	Labels   map[string]string
}
