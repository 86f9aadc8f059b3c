package network

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// noEngineNetwork is what the engine connects containers to whose network comes from plugins.
const noEngineNetwork = "none"

// Plugins are what gives containers a network that the engine does not: *cni.Plugins in mode CNI, endpoints on overlay networks of Windows.
type Plugins interface {
	Load(ctx context.Context) (name, file string, err error)
	Add(ctx context.Context, a cni.Attachment) ([]netip.Addr, error)
	Attached(id, netns string) ([]netip.Addr, bool)
	MapsPorts(id string) bool
	Del(ctx context.Context, id, netns string) error
	Check(ctx context.Context, id string) error
	Records() []cni.Attachment
	Collect(ctx context.Context, exists func(context.Context) (map[string]bool, error)) error
}

// namespaceOf is CNI_NETNS of a container: on Linux its namespace by the infra container's process, on Windows, where a namespace has no
// path, the engine's word for the container's network, which plugins there take instead.
func namespaceOf(platform pod.Platform, m pod.Member) string {
	switch {
	case platform.OS != "windows":
		return fmt.Sprintf("/proc/%d/ns/net", m.PID)
	case m.SandboxID == "" || m.SandboxID == m.ID:
		return "none"
	}
	return sharing + m.SandboxID
}

// sharing begins CNI_NETNS of a container of Windows that shares another's network.
const sharing = "container:"

// sharedWith is whose network that is; ok false: the container's own.
func sharedWith(netns string) (container string, ok bool) { return strings.CutPrefix(netns, sharing) }

// Attachments implements pod.Attacher.
func (m *Manager) Attachments(p *v1.Pod, engine pod.Observed) pod.Attachments {
	m.notice(p, &engine)
	if m.parts.Plugins == nil || p.Spec.HostNetwork {
		return nil
	}
	out := pod.Attachments{}
	ask := func(member pod.Member) {
		addresses, attached := m.parts.Plugins.Attached(member.ID, namespaceOf(m.cfg.Platform, member))
		if member.SandboxID != "" { // the sandbox has them
			addresses = nil
		}
		out[pod.EngineID(member.ID)] = pod.Attachment{Waits: !attached, Addresses: addresses, MapsPorts: m.parts.Plugins.MapsPorts(member.ID)}
	}
	for _, s := range engine.Sandboxes {
		if s.Running && len(s.Addresses) == 0 { // with addresses: made in another mode
			ask(pod.Member{ID: s.ID, PID: s.PID})
		}
	}
	for _, c := range engine.Containers {
		if m.cfg.Platform.OS == "windows" && c.State == pod.Running && len(c.Addresses) == 0 {
			ask(pod.Member{ID: c.ID, SandboxID: c.SandboxID})
		}
	}
	return out
}

// Attach implements pod.Attacher.
func (m *Manager) Attach(ctx context.Context, p *v1.Pod, to pod.Member) error {
	if m.parts.Plugins == nil {
		return nil
	}
	a := cni.Attachment{
		ContainerID: to.ID, Netns: namespaceOf(m.cfg.Platform, to), Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), SandboxID: to.SandboxID,
		Borrowed: to.SandboxID != to.ID, Ports: portMappings(p),
	}
	if to.SandboxID == "" { // the container is all that there is of the pod
		a.SandboxID, a.Borrowed = to.ID, false
	}
	var err error
	if a.Bandwidth, err = bandwidth(p.Annotations); err != nil {
		return err
	}
	if m.parts.DNS != nil && m.cfg.Platform.OS == "windows" { // Linux has it in the pod's resolv.conf
		dns, err := m.parts.DNS(p)
		if err != nil {
			return fmt.Errorf("cannot tell the pod's network of its DNS: %w", err)
		}
		a.DNS = &cni.DNS{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
	}
	_, err = m.parts.Plugins.Add(ctx, a)
	return err
}

// Detach implements pod.Attacher.
func (m *Manager) Detach(ctx context.Context, from pod.Member) error {
	if m.parts.Plugins == nil {
		return nil
	}
	namespace := ""
	if m.cfg.Platform.OS == "windows" || from.PID > 0 {
		namespace = namespaceOf(m.cfg.Platform, from)
	}
	return m.parts.Plugins.Del(ctx, from.ID, namespace)
}

// portMappings are the pod's hostPorts, for plugins that map them.
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

// The annotations of a pod that limit its network, and what upstream takes for them.
const (
	ingressBandwidth = "kubernetes.io/ingress-bandwidth"
	egressBandwidth  = "kubernetes.io/egress-bandwidth"
)

var leastBandwidth, mostBandwidth = resource.MustParse("1k"), resource.MustParse("1P") // bits per second

// bandwidth reads them; nil: no limit.
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

// plugged brings mode CNI about: the plugins make the network, we let its packets pass.
func (m *Manager) plugged(ctx context.Context, state State) (Condition, error) {
	name, file, err := m.parts.Plugins.Load(ctx)
	if err != nil {
		return m.refused(noPlugins, err)
	}
	if err := m.parts.Host.Apply(ctx, state); err != nil {
		return Condition{}, m.failed(err)
	}
	state.Ready = ready("pods get their network from the CNI network %q of %s", name, file)
	m.done(state, nil)
	return Condition{}, nil
}

// tend looks once whether what the plugins made is still there, and takes back what nobody uses, now and on a timer. A plugin that hangs
// holds up nothing else.
func (m *Manager) tend(ctx context.Context) {
	timer := m.parts.Clock.NewTimer(recheck)
	defer timer.Stop()
	for first := true; ; first = false {
		if err := m.parts.Plugins.Collect(ctx, m.parts.Containers); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot take back the network of containers that are gone", "retryIn", recheck)
		}
		if first {
			m.check(ctx)
		}
		restart(timer, recheck)
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
	}
}

// check tells of pods whose network is not as the plugins left it. Nothing is done about it: only the plugins know what, and the pod
// may well work.
func (m *Manager) check(ctx context.Context) {
	for _, a := range m.parts.Plugins.Records() {
		err := m.parts.Plugins.Check(ctx, a.ContainerID)
		if err == nil || ctx.Err() != nil {
			continue
		}
		klog.ErrorS(err, "The network of a pod is not as its CNI plugins left it", "pod", a.Namespace+"/"+a.Name)
		if m.parts.PodEvent != nil {
			m.parts.PodEvent(a.Namespace, a.Name, a.UID, v1.EventTypeWarning, "NetworkCheckFailed",
				"The pod's network is not as its CNI plugins left it; recreate the pod if it does not work: "+err.Error())
		}
	}
}

// follow has the configuration directory read anew when something in it changes, or when it comes to be.
func (m *Manager) follow(ctx context.Context, dir string) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		klog.ErrorS(err, "Cannot watch the CNI configuration directory; it is read on a timer", "directory", dir, "every", recheck)
		return
	}
	defer watcher.Close()
	for ctx.Err() == nil {
		at := addNearest(watcher.Add, dir)
		for _, former := range watcher.WatchList() {
			if former != at {
				_ = watcher.Remove(former)
			}
		}
		m.Kick() // something may have come before it was watched
		select {
		case <-ctx.Done():
		case <-watcher.Errors:
		case <-watcher.Events:
			m.settleDown(ctx, watcher)
		}
	}
}

// addNearest adds dir or, of what would hold it, the nearest that exists, and returns what it has added last. What comes to be between the
// look for it and the watch of what holds it would be told by neither, so that it is looked for once more.
func addNearest(add func(path string) error, dir string) (at string) {
	at = dir
	for add(at) != nil && at != filepath.Dir(at) {
		at = filepath.Dir(at)
	}
	for at != dir {
		next := dir
		for filepath.Dir(next) != at {
			next = filepath.Dir(next)
		}
		if add(next) != nil {
			break
		}
		at = next
	}
	return at
}

// quiet is how long a directory has to be without changes before it is read: who writes a file does it in several steps.
const quiet = 100 * time.Millisecond

func (m *Manager) settleDown(ctx context.Context, watcher *fsnotify.Watcher) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
		case <-m.parts.Clock.After(quiet):
			return
		}
	}
}
