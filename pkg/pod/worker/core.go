package worker

import (
	"context"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// core is what the parts of one worker share: the pod's identity, what is known of it, and the way into the loop. Only the loop uses the
// fields below inbox.
type core struct {
	cfg   *Config
	parts *Parts
	uid   types.UID
	// agentStart is when this agent started: probes of older containers start with a random delay.
	agentStart time.Time
	inbox      *inbox
	crew       crew

	ctx    context.Context // the loop's
	pod    *v1.Pod
	mirror *v1.Pod // a static pod's mirror pod on the API server; nil: none
	seen   plan.Seen
	next   time.Time // when to look again; zero: when something happens
	timing timing
	said   map[string]string // last content of Events, by topic
}

func newCore(cfg *Config, parts *Parts, d pod.Desired, agentStart time.Time) *core {
	c := &core{cfg: cfg, parts: parts, uid: d.Pod.UID, agentStart: agentStart, inbox: newInbox(), pod: d.Pod, mirror: d.Mirror, said: map[string]string{}}
	c.seen.Node = plan.Node{Platform: cfg.Platform, Dead: cfg.Dead, CrashBackOff: cfg.CrashBackOff}
	m := &c.seen.Memory
	m.Delays, m.Retries = map[plan.ContainerName]time.Duration{}, map[plan.Key]plan.Retry{}
	m.Resize.Pending = d.Resize
	m.Last = *d.Pod.Status.DeepCopy()
	if d.Mirror != nil && d.Mirror.Annotations[v1.MirrorPodAnnotationKey] == podspec.MirrorHash(d.Pod) {
		m.Last = *d.Mirror.Status.DeepCopy()
	}
	m.Recall(d.Pod)
	c.timing = newTiming(parts.Timing, m.Last.Phase, c.now())
	return c
}

func (c *core) now() time.Time { return c.parts.Clock.Now() }

// lookAt makes the loop look again at t, unless something happens earlier.
func (c *core) lookAt(t time.Time) {
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
}

// phase is the pod's current phase.
func (c *core) phase() pod.Phase { return c.seen.Memory.Phase }

// do calls f in another goroutine, and then calls then with its error in the loop.
func (c *core) do(ctx context.Context, f func(ctx context.Context) error, then func(error)) {
	c.crew.do(ctx, f, func(err error) { c.inbox.put(func() { then(err) }) })
}

// failed records that key's operation failed. The next try is after hint, or else after a doubling back-off.
func (c *core) failed(key plan.Key, reason, message string, hint time.Duration) {
	r := c.seen.Memory.Retries[key].Again(c.now(), hint)
	r.Reason, r.Message = reason, message
	c.seen.Memory.Retries[key] = r
}

// succeeded forgets the failures of key.
func (c *core) succeeded(key plan.Key) { delete(c.seen.Memory.Retries, key) }

// addresses are the pod's addresses as its status shows them.
func (c *core) addresses() []netip.Addr {
	observed := c.seen.Observed()
	return pod.PodAddresses(c.pod, observed, c.seen.Node.HostIPs)
}

// event sends an Event about the pod.
func (c *core) event(kind, reason, message string) {
	c.parts.Events.Event(podspec.Reference(c.pod), kind, reason, message)
}

// containerEvent sends an Event about one of the pod's containers.
func (c *core) containerEvent(of plan.Subject, kind, reason, message string) {
	c.parts.Events.Event(podspec.ContainerReference(c.pod, of.Container, of.Kind), kind, reason, message)
}

// isNews reports whether what differs from the last text under topic, and records it.
func (c *core) isNews(topic, what string) bool {
	known := c.said[topic] == what
	c.said[topic] = what
	return !known
}

// register starts watches of the objects that the pod refers to.
func (c *core) register() {
	if c.phase() == pod.Syncing {
		c.parts.Objects.Register(c.pod)
	}
}

// log writes a line about the pod.
func (c *core) log(level klog.Level, message string, keysAndValues ...any) {
	klog.V(level).InfoS(message, append([]any{"pod", klog.KObj(c.pod)}, keysAndValues...)...)
}
