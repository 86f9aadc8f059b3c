package network

import (
	"context"
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// noEngineNetwork is the engine network of containers that the engine does not connect.
const noEngineNetwork = "none"

// connected is the pod.Attacher of modes in which the engine connects pods.
type connected struct{}

// Attachments implements pod.Attacher: the engine already reports everything.
func (connected) Attachments(*v1.Pod, pod.Observed) pod.Attachments { return nil }

// Attach implements pod.Attacher.
func (connected) Attach(context.Context, *v1.Pod, pod.Member) error { return nil }

// Detach implements pod.Attacher.
func (connected) Detach(context.Context, pod.Member) error { return nil }

// attacher is the pod.Attacher of modes with Attachments.
type attacher struct {
	platform    pod.Platform
	attachments Attachments
	pods        Pods
	kernel      podlink.Kernel // Linux only
}

func newAttacher(s shared, attachments Attachments) *attacher {
	return &attacher{platform: s.cfg.Platform, attachments: attachments, pods: s.Pods, kernel: s.PodLinks}
}

// netns is CNI_NETNS of a container. On Linux it is the path of its namespace, by the infra container's process. On Windows, where namespaces have no
// path, it is the engine's name of the container's network, which plugins accept instead.
func (a *attacher) netns(m pod.Member) string {
	switch {
	case a.platform.OS != "windows":
		return fmt.Sprintf("/proc/%d/ns/net", m.PID)
	case m.SandboxID == "" || m.SandboxID == m.ID:
		return cni.Unshared
	}
	return cni.NetnsOf(m.SandboxID)
}

// Attachments implements pod.Attacher.
func (a *attacher) Attachments(p *v1.Pod, engine pod.Observed) pod.Attachments {
	if p.Spec.HostNetwork {
		return nil
	}
	out := pod.Attachments{}
	ask := func(member pod.Member) {
		addresses, attached := a.attachments.Attached(member.ID, a.netns(member))
		if member.SandboxID != "" { // the sandbox has the attachment
			addresses = nil
		}
		out[pod.EngineID(member.ID)] = pod.Attachment{Waits: !attached, Addresses: addresses, MapsPorts: a.attachments.MapsPorts(member.ID)}
	}
	for _, s := range engine.Sandboxes {
		if s.Running && len(s.Addresses) == 0 && (s.Network == "" || s.Network == noEngineNetwork) { // otherwise created in another mode
			ask(pod.Member{ID: s.ID, PID: s.PID})
		}
	}
	for _, c := range engine.Containers {
		if a.platform.OS == "windows" && c.State == pod.Running && len(c.Addresses) == 0 {
			ask(pod.Member{ID: c.ID, SandboxID: c.SandboxID})
		}
	}
	return out
}

// Attach implements pod.Attacher.
func (a *attacher) Attach(ctx context.Context, p *v1.Pod, to pod.Member) error {
	at := cni.Attachment{
		ContainerID: to.ID, Netns: a.netns(to), Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), SandboxID: to.SandboxID,
		Borrowed: to.SandboxID != to.ID, Ports: portMappings(p), Sysctls: podspec.InterfaceSysctls(p),
	}
	if to.SandboxID == "" { // the pod has no other container
		at.SandboxID, at.Borrowed = to.ID, false
	}
	var err error
	if at.Bandwidth, err = bandwidth(p.Annotations); err != nil {
		return err
	}
	if a.platform.OS == "windows" { // on Linux the pod's resolv.conf has it
		dns, err := a.pods.DNS(p)
		if err != nil {
			return fmt.Errorf("cannot configure DNS in the pod's network: %w", err)
		}
		at.DNS = &cni.DNS{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
	}
	if _, err = a.attachments.Add(ctx, at); err != nil {
		return err
	}
	if _, ours := a.attachments.(*podlink.Links); ours || len(at.Sysctls) == 0 || a.kernel == nil {
		return nil
	}
	return a.kernel.Do(podlink.SysctlSteps(at.Sysctls), at.ContainerID, at.Netns)
}

// Detach implements pod.Attacher.
func (a *attacher) Detach(ctx context.Context, from pod.Member) error {
	netns := ""
	if a.platform.OS == "windows" || from.PID > 0 {
		netns = a.netns(from)
	}
	return a.attachments.Del(ctx, from.ID, netns)
}

// portMappings are the pod's hostPorts, for plugins that implement them.
func portMappings(p *v1.Pod) (out []cni.PortMapping) {
	for _, c := range podspec.PortContainers(p) {
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				out = append(out, cni.PortMapping{HostPort: port.HostPort, ContainerPort: port.ContainerPort, HostIP: port.HostIP,
					Protocol: strings.ToLower(string(port.Protocol))})
			}
		}
	}
	return out
}

// The annotations that limit a pod's bandwidth, and the values that upstream accepts.
const (
	ingressBandwidth = "kubernetes.io/ingress-bandwidth"
	egressBandwidth  = "kubernetes.io/egress-bandwidth"
)

var leastBandwidth, mostBandwidth = resource.MustParse("1k"), resource.MustParse("1P") // bits per second

// bandwidth parses the annotations; nil: no limit.
func bandwidth(annotations map[string]string) (*cni.Bandwidth, error) {
	out := &cni.Bandwidth{}
	for name, to := range map[string]struct{ rate, burst *int64 }{
		ingressBandwidth: {&out.IngressRate, &out.IngressBurst}, egressBandwidth: {&out.EgressRate, &out.EgressBurst},
	} {
		text, set := annotations[name]
		if !set {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Cmp(leastBandwidth) < 0 || q.Cmp(mostBandwidth) > 0 {
			return nil, fmt.Errorf("annotation %s=%q: want bits per second from 1k to 1P, as in 10M", name, text)
		}
		*to.rate, *to.burst = q.Value(), math.MaxInt32
	}
	if *out == (cni.Bandwidth{}) {
		return nil, nil
	}
	return out, nil
}

// collector releases the network of removed containers on a timer.
type collector struct {
	attachments Attachments
	engine      Engine
	clock       clock.Clock
}

// once collects immediately. Errors are logged: the next collection is soon.
func (c collector) once(ctx context.Context) {
	if err := c.attachments.Collect(ctx, c.engine.Existing); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Cannot release the network of removed containers", "retryIn", recheck)
	}
}

// run collects every recheck until ctx ends.
func (c collector) run(ctx context.Context) {
	timer := c.clock.NewTimer(recheck)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		c.once(ctx)
		timer.Reset(recheck)
	}
}
