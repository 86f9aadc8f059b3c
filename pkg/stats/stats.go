// Package stats measures what the node and its pods use, when it is asked for and only then.
//
//	worker.Manager's Snapshot --> cgroups and /proc (Linux), the engine (Windows) --> collection, kept for a moment --> Summary, text --> server
//
// Askers at the same moment share one collection. What must walk directories is kept longer than what is read from the kernel,
// and what hangs is told by its last figure.
package stats

import (
	"context"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// How old an answer may be. Upstream's kubelet measures disks once a minute (kubernetes pkg/kubelet/kubelet.go, volumeStatsAggPeriod).
const (
	usageAge = time.Second
	diskAge  = 30 * time.Second
)

// Config says whose figures these are.
type Config struct {
	NodeName string
	OS       string // "linux" or "windows"
	CPUs     int
	Root     string // directory whose file system is the node's
	Proc     string // of Linux; "": /proc
	// VolumeHealth has what CSI drivers say of their volumes' health reported (feature gate CSIVolumeHealth).
	VolumeHealth bool
}

// meter measures containers on one system.
type meter interface {
	// prepare comes before a collection of the containers with these ids.
	prepare(ctx context.Context, ids []string)
	// container measures one, and where its pod has a cgroup also that, if asked to; else whole is nil.
	container(ctx context.Context, uid types.UID, c *pod.Container, pod bool) (s Sample, whole *Sample, err error)
	// interfaces is what a container's pod sees, or for nil the host; the main one first.
	interfaces(c *pod.Container) ([]Interface, error)
	// detail is what of a container that was measured only /metrics/cadvisor shows, and the path of its cgroup; nil where it is not known.
	detail(used *containerUsage) (d *cgroup.Detail, path string)
	// oomKills are those of the whole pod of a container with that id; nil: not known.
	oomKills(id string) *uint64
	// devices are the names of the machine's block devices by their numbers, MAJOR:MINOR.
	devices() map[string]string
	// system measures the node beside the pods.
	system() (systemUsage, error)
}

// running are the ids of the containers that run.
func running(views []pod.View) (ids []string) {
	for _, view := range views {
		for _, c := range view.Observed.Containers {
			if c.State == pod.Running {
				ids = append(ids, c.ID)
			}
		}
	}
	return ids
}

// Sample is what a container, or a pod as a whole, has used.
type Sample = cgroup.Sample

// systemUsage is what the node uses beside single pods.
type systemUsage struct {
	pressure   map[string]cgroup.Pressure // of the whole machine
	containers []containerUsage           // what upstream calls system containers: kubelet, runtime, pods
}

// Collector owns the last figures.
type Collector struct {
	cfg   Config
	parts Parts
	meter meter

	mu    sync.Mutex // held while collecting, so that those who come meanwhile find what they want
	taken time.Time
	usage usage
	rates map[string]rate // by container id, pod uid or name of a system container, and "" for the node

	diskMu    sync.Mutex
	diskTaken time.Time
	disks     disks
}

// usage is one collection of what the kernel reports without delay.
type usage struct {
	at     time.Time
	load   host.Load
	boot   time.Time
	net    []Interface
	cores  *uint64 // nanocores of the whole machine
	system systemUsage
	pods   []podUsage
	failed int // containers, or the node itself, that could not be measured
}

type podUsage struct {
	pod        *v1.Pod
	view       pod.View // of pod, when it was measured
	net        []Interface
	containers []containerUsage
	whole      *containerUsage // by the pod's own cgroup, the infra container with it; nil: there is none
}

type containerUsage struct {
	name    string
	id      string
	image   string
	started time.Time
	sample  Sample
	cores   *uint64
}

// rate is the sample before, from which the use of the moment follows.
type rate struct {
	at  time.Time
	cpu time.Duration
}

// New makes a Collector, which does nothing until it is asked. An error means that this system cannot be measured.
func New(cfg Config, parts Parts) (*Collector, error) {
	c := &Collector{cfg: cfg, parts: parts, rates: map[string]rate{}}
	if cfg.OS == "windows" {
		c.meter = &compute{host: parts.Host, engine: parts.Engine}
	}
	if cfg.OS == "linux" {
		if cfg.Proc == "" {
			cfg.Proc = "/proc"
		}
		reader, err := cgroup.NewReader(cfg.Proc)
		if err != nil {
			return nil, err
		}
		c.meter = &kernel{reader: reader, proc: cfg.Proc, parts: parts}
	}
	return c, nil
}

// collect gives figures that are at most usageAge old.
func (c *Collector) collect(ctx context.Context) usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.parts.Clock.Now()
	if age := now.Sub(c.taken); c.taken.IsZero() || age < 0 || age >= usageAge {
		c.usage = c.measure(ctx, now)
		c.taken = now
	}
	return c.usage
}

// measure asks for everything. What cannot be measured is left out and counted; a container that ends meanwhile is neither.
func (c *Collector) measure(ctx context.Context, now time.Time) usage {
	u := usage{at: now}
	fail := func(err error, what ...any) {
		u.failed++
		klog.V(3).InfoS("Cannot measure", append(what, "err", err)...)
	}
	var err error
	if u.load, err = c.parts.Host.Load(); err != nil {
		fail(err, "node", c.cfg.NodeName)
	}
	if u.boot, err = c.parts.Host.Boot(); err != nil {
		fail(err, "node", c.cfg.NodeName)
	}
	if u.net, err = c.meter.interfaces(nil); err != nil {
		fail(err, "node", c.cfg.NodeName)
	}
	if u.system, err = c.meter.system(); err != nil {
		fail(err, "node", c.cfg.NodeName)
	}
	rates := map[string]rate{"": {now, u.load.CPU}}
	u.cores = cores(c.rates[""], rates[""])
	rated := func(key string, used *containerUsage) {
		rates[key] = rate{now, used.sample.CPU}
		used.cores = cores(c.rates[key], rates[key])
	}
	for i := range u.system.containers {
		rated(u.system.containers[i].name, &u.system.containers[i])
	}
	views := c.parts.Pods.Snapshot()
	c.meter.prepare(ctx, running(views))
	for _, view := range views {
		p := podUsage{pod: view.Pod, view: view}
		seen := map[string]bool{}
		for i := range view.Observed.Containers {
			box := &view.Observed.Containers[i]
			if box.State != pod.Running || seen[box.Name] { // newest first
				continue
			}
			seen[box.Name] = true
			sample, whole, err := c.meter.container(ctx, view.Pod.UID, box, p.whole == nil)
			if err != nil {
				if !ended(err) {
					fail(err, "pod", klog.KObj(view.Pod), "container", box.Name)
				}
				continue
			}
			used := containerUsage{name: box.Name, id: box.ID, image: box.Image, started: box.StartedAt, sample: sample}
			rated(box.ID, &used)
			p.containers = append(p.containers, used)
			if whole != nil {
				p.whole = &containerUsage{sample: *whole}
				rated(string(view.Pod.UID), p.whole)
			}
			if p.net == nil && !view.Pod.Spec.HostNetwork {
				if p.net, err = c.meter.interfaces(box); err != nil && !ended(err) {
					fail(err, "pod", klog.KObj(view.Pod))
				}
			}
		}
		if len(p.containers) > 0 {
			u.pods = append(u.pods, p)
		}
	}
	c.rates = rates
	return u
}

// cores is the use between two samples in nanocores; nil when there are not two of the same counter.
func cores(before, after rate) *uint64 {
	span := after.at.Sub(before.at)
	if before.at.IsZero() || span <= 0 || after.cpu < before.cpu {
		return nil
	}
	n := uint64(float64(after.cpu-before.cpu) / span.Seconds())
	return &n
}

// SummaryHandler serves /stats/summary; with only_cpu_and_memory=true without disks and networks.
func (c *Collector) SummaryHandler() http.Handler {
	return compressed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serveJSON(w, c.Summary(r.Context(), r.FormValue("only_cpu_and_memory") == "true"))
	}))
}

// Summary is the state of the node in upstream's shape (k8s.io/kubelet/pkg/apis/stats/v1alpha1).
func (c *Collector) Summary(ctx context.Context, onlyUsage bool) *summary.Summary {
	ctx = context.WithoutCancel(ctx) // others share the answer of whoever came first
	u := c.collect(ctx)
	if onlyUsage {
		return c.summarize(u, nil)
	}
	d := c.measureDisks(ctx, u)
	return c.summarize(u, &d)
}

// Node measures the node alone, now: memory, disks and processes, without rates and networks. What cannot be measured is missing.
func (c *Collector) Node(ctx context.Context) *summary.NodeStats {
	u := usage{at: c.parts.Clock.Now()}
	var err error
	if u.load, err = c.parts.Host.Load(); err != nil {
		klog.V(3).InfoS("Cannot measure the node", "err", err)
	}
	if u.system, err = c.meter.system(); err != nil {
		klog.V(3).InfoS("Cannot measure the node", "err", err)
	}
	d := disks{at: u.at}
	c.nodeDisks(ctx, &d)
	return &c.summarize(u, &d).Node
}
