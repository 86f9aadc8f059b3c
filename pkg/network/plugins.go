package network

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/filewatch"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

// planPlugins leaves the network to the plugins, but accepts packets that they may not know about: the engine's FORWARD policy drops packets from
// other nodes to the Node's pods. A network with addresses outside the Node's ranges, or with none, must do that itself.
func planPlugins(cfg Config, facts Facts) (State, error) {
	cidrs, err := parseCIDRs(facts.PodCIDRs)
	if err != nil {
		return State{}, err
	}
	s := State{Join: noEngineNetwork, Ready: ready("pods get their network from CNI plugins")}
	for _, c := range cidrs {
		if cfg.Platform.OS != "windows" {
			s.Rules = append(s.Rules, iptables.Rules{PodCIDR: c})
		}
	}
	return s, nil
}

// pluggable is the Maker of mode cni: the plugins create the network, we let its packets pass.
type pluggable struct {
	plain
	host     Host
	plugins  Plugins
	pods     Pods
	attacher *attacher
	collect  collector
	conf     confWatcher
}

func newPlugins(s shared) Maker {
	return &pluggable{host: s.Host, plugins: s.Plugins, pods: s.Pods, attacher: newAttacher(s, s.Plugins),
		collect: collector{s.Plugins, s.Engine, s.Clock}, conf: confWatcher{dir: s.cfg.ConfDir, clock: s.Clock, changed: s.wake}}
}

// Make implements Maker.
func (p *pluggable) Make(ctx context.Context, in Input) (Made, error) {
	name, file, err := p.plugins.Load(ctx)
	if err != nil {
		return Made{}, refuse(noPlugins, err)
	}
	if err := p.host.Apply(ctx, in.State); err != nil {
		return Made{}, err
	}
	s := in.State
	s.Ready = ready("pods get their network from the CNI network %q of %s", name, file)
	return Made{State: s}, nil
}

// Reconnect implements Maker: only the plugins can repair connections, and the engine does not know which containers are connected.
func (p *pluggable) Reconnect(context.Context, Made) error { return nil }

// Run implements Maker: it watches the configuration, checks connections once and collects unused ones. A hanging plugin delays nothing else.
func (p *pluggable) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { p.conf.watch(ctx) })
	p.collect.once(ctx)
	p.check(ctx)
	p.collect.run(ctx)
}

// Attacher implements Maker.
func (p *pluggable) Attacher() pod.Attacher { return p.attacher }

// check reports pods whose network has changed since the plugins connected them. It repairs nothing: only the plugins can, and the pod may work.
func (p *pluggable) check(ctx context.Context) {
	for _, a := range p.plugins.Records() {
		err := p.plugins.Check(ctx, a.ContainerID)
		if err == nil || ctx.Err() != nil {
			continue
		}
		klog.ErrorS(err, "The CNI plugins found a changed pod network; recreate the pod if it does not work", "pod", a.Namespace+"/"+a.Name)
		p.pods.Event(a.Namespace, a.Name, a.UID, v1.EventTypeWarning, "NetworkCheckFailed",
			"The CNI plugins found the pod's network changed; recreate the pod if it does not work: "+err.Error())
	}
}

// confWatcher watches the CNI configuration directory, which may not exist yet.
type confWatcher struct {
	dir     string
	clock   clock.Clock
	changed wake.Signal
}

// watch returns when ctx ends, or if this host cannot watch files.
func (w confWatcher) watch(ctx context.Context) {
	watcher, err := filewatch.New()
	if err != nil {
		klog.ErrorS(err, "Cannot watch the CNI configuration directory; reading it on a timer", "directory", w.dir, "every", recheck)
		return
	}
	defer watcher.Close()
	for ctx.Err() == nil {
		at := addNearest(watcher.Add, w.dir)
		for _, former := range watcher.Watched() {
			if former != at {
				_ = watcher.Remove(former)
			}
		}
		w.changed.Send() // something may have changed before the watch began
		select {
		case <-ctx.Done():
		case <-watcher.Changed():
			w.untilQuiet(ctx, watcher)
		}
	}
}

// quiet is how long a directory must be unchanged before it is read: a file is written in several steps.
const quiet = 100 * time.Millisecond

// untilQuiet returns when nothing has changed for that long.
func (w confWatcher) untilQuiet(ctx context.Context, watcher *filewatch.Watcher) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Changed():
		case <-w.clock.After(quiet):
			return
		}
	}
}

// addNearest adds dir or its nearest existing parent, and returns the last directory added. A directory created between the check for it and the
// watch of its parent would be missed, so addNearest checks once more.
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
