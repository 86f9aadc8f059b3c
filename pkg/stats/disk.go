package stats

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

// patience is how long callers wait for disk figures; then they get the last known ones.
const patience = 5 * time.Second

// disks is one collection of disk usage.
type disks struct {
	node, images *disk.Figure
	pods         map[types.UID]disk.Pod
	at           time.Time
}

// measureDisks returns figures of the pods in u that are at most diskAge old. For a hanging disk it returns the last known figures, with their times.
func (c *Collector) measureDisks(ctx context.Context, u usage) disks {
	c.diskMu.Lock()
	defer c.diskMu.Unlock()
	now := c.parts.Clock.Now()
	if age := now.Sub(c.diskTaken); !c.diskTaken.IsZero() && age >= 0 && age < diskAge {
		return c.disks
	}
	d := disks{at: now}
	c.nodeDisks(ctx, &d)
	views := make([]pod.View, len(u.pods))
	for i := range u.pods {
		views[i] = u.pods[i].view
	}
	d.pods = c.parts.Disks.Pods(ctx, disk.Terms{Age: diskAge / 2, Patience: patience}, views, nil)
	c.disks, c.diskTaken = d, now
	return d
}

// nodeDisks measures the file systems of the node and of the images.
func (c *Collector) nodeDisks(ctx context.Context, d *disks) {
	d.node = c.disk(ctx, c.cfg.Root)
	if root, err := c.parts.Disks.ImageRoot(ctx); err == nil && root != "" {
		d.images = c.disk(ctx, root)
	} else {
		klog.V(3).InfoS("Cannot find where the engine keeps images", "err", err)
	}
}

// disk returns the known figure of a file system; nil: unknown.
func (c *Collector) disk(ctx context.Context, path string) *disk.Figure {
	f := c.parts.Disks.FileSystem(ctx, disk.Terms{Patience: patience}, path)
	if f.At.IsZero() {
		klog.V(3).InfoS("Cannot measure a disk", "path", path, "late", f.Late, "err", f.Err)
		return nil
	}
	return &f
}

// ended says that a container's files vanished while they were being read.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.Errno(3)) || errors.Is(err, syscall.Errno(19)) // ESRCH, ENODEV
}

func serveJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(value); err != nil {
		klog.V(4).InfoS("Cannot answer", "err", err)
	}
}
