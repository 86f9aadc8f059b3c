// Package pod has the nouns of the kubelet's flow and the interfaces between its parts. It does nothing by itself: no goroutine starts
// here, and nothing is read or written.
//
//	source.Source -> worker.Manager -> one worker per UID: plan.Plan(pod, seen, now) -> steps -> Runtime, Volumes, Network
//	                                                       plan.Status(pod, seen, now) -> StatusWriter
//	                                   start.Resolver: what one container needs before its start
//
// Each of these rooms is a package below this one; packages docker, volume, network and kubeclient implement the interfaces. The worker
// has a room too, although the flow is described here: it calls plan, which needs these nouns, and Go's imports cannot go round.
package pod

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// Platform is what Plan and the engine's Convert must know of the host. It is a value so that every platform is tested everywhere.
type Platform struct {
	OS   string // "linux" or "windows", as in runtime.GOOS and the label kubernetes.io/os
	Arch string // as in runtime.GOARCH
	// Build is the Windows build number (14393 is Server 2016, 17763 is 2019, 20348 is 2022, 26100 is 2025); 0 on Linux.
	Build int
	// SharedNetwork says that a container can join the network of another. False on Windows before 1709 (build 16299): a pod there
	// has one container, no sandbox, and that container's address.
	SharedNetwork bool
}

// ProbeResult is how a probe ended.
type ProbeResult struct {
	OK      bool
	Warning bool   // with OK: it passed, and Detail says what is odd
	Detail  string // what Events show
}

// ProbeTarget is where a probe goes.
type ProbeTarget struct {
	ContainerID string
	PodIP       netip.Addr
	Ports       []v1.ContainerPort // to resolve named ports
	Env         []Env
	// Who is probed, and why: Startup, Liveness or Readiness.
	Pod             *v1.Pod
	Container, Kind string
}

// EngineNetwork is a network of the engine on which sandboxes are made. Package network decides it, package docker keeps it.
type EngineNetwork struct {
	Name     string
	ID       string // set by the engine
	Driver   string // bridge; transparent, l2bridge, nat, overlay on Windows
	Subnets  []netip.Prefix
	Gateways []netip.Addr // one per subnet, same order
	Options  map[string]string
	Labels   map[string]string
}
