package kubelet

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/csi/drivers"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/wake"
)

// pluginRelist is the maximum delay of a plugin whose event was lost. Reading the directory takes less than a millisecond.
const pluginRelist = 30 * time.Second

// csiDrivers are this node's CSI drivers, and the watcher that finds them.
type csiDrivers struct {
	*drivers.Registry
	watcher *plugins.Watcher
	objects *kubeclient.CSIObjects
	joined  wake.Signal
	sockets string // the directory of the drivers' service sockets
	none    error  // why drivers cannot serve on this host; nil: they can
}

// newCSIDrivers creates both. The directories are those that drivers' DaemonSets mount: plugins and plugins_registry below --root-dir.
func newCSIDrivers(cfg Config, client clientset.Interface, objects *kubeclient.CSIObjects, events events) csiDrivers {
	joined := wake.New()
	registry := drivers.New(cfg.NodeName, drivers.Parts{Client: client, Objects: objects, Events: events, Counted: cfg.Counters.CSICalled, Clock: clock.RealClock{}, Joined: joined})
	watcher := plugins.New(plugins.Config{
		Dir: filepath.Join(cfg.RootDir, "plugins_registry"), Windows: cfg.Platform.OS == "windows", Relist: pluginRelist, Clock: clock.RealClock{},
		Handlers: map[string]plugins.Handler{registration.CSIPlugin: registry},
	})
	return csiDrivers{registry, watcher, objects, joined, filepath.Join(cfg.RootDir, "plugins"), cfg.Platform.NoSockets()}
}

// Run finds and publishes drivers until ctx ends, and watches what they and their volumes need.
func (c csiDrivers) Run(ctx context.Context) error {
	if err := os.MkdirAll(c.sockets, 0o750); err != nil {
		klog.ErrorS(err, "Cannot make the directory for the sockets of CSI drivers", "directory", c.sockets)
	}
	group, ctx := errgroup.WithContext(ctx)
	if c.none != nil {
		klog.InfoS("Not looking for CSI drivers", "reason", c.none)
	} else {
		group.Go(func() error { return c.watcher.Run(ctx) })
	}
	group.Go(func() error { return c.Registry.Run(ctx) })
	group.Go(func() error { return c.objects.Run(ctx) })
	return group.Wait()
}
