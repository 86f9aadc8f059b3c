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

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/volume"
)

// disks is one collection of what lies on disks.
type disks struct {
	at           time.Time
	node, images *host.Disk
	volumes      map[types.UID][]volume.Usage
	containers   map[string]written // by id
}

// written is what a container has put on disks. nil: not known.
type written struct{ layer, log *amount }

type amount struct{ bytes, files uint64 }

// measureDisks gives figures that are at most diskAge old, of the pods in u.
func (c *Collector) measureDisks(ctx context.Context, u usage) disks {
	c.diskMu.Lock()
	defer c.diskMu.Unlock()
	now := c.parts.Clock.Now()
	if age := now.Sub(c.diskTaken); !c.diskTaken.IsZero() && age >= 0 && age < diskAge {
		return c.disks
	}
	d := disks{at: now, volumes: map[types.UID][]volume.Usage{}}
	c.nodeDisks(ctx, &d)
	d.containers = c.measureContainers(ctx, u)
	for _, p := range u.pods {
		usages, err := c.parts.Volumes(p.pod)
		if err != nil {
			klog.V(3).InfoS("Cannot measure volumes", "pod", klog.KObj(p.pod), "err", err)
		}
		d.volumes[p.pod.UID] = usages
	}
	c.disks, c.diskTaken = d, now
	return d
}

// nodeDisks asks for the file systems of the node and of the images.
func (c *Collector) nodeDisks(ctx context.Context, d *disks) {
	d.node = c.disk(c.cfg.Root)
	if root, err := c.parts.ImageRoot(ctx); err == nil && root != "" {
		d.images = c.disk(root)
	} else {
		klog.V(3).InfoS("Cannot find where the engine keeps images", "err", err)
	}
}

// measureContainers walks what containers have written. The engine is asked only for those that it was not asked for before.
func (c *Collector) measureContainers(ctx context.Context, u usage) map[string]written {
	var ids []string
	for _, p := range u.pods {
		for i := range p.containers {
			ids = append(ids, p.containers[i].id)
		}
	}
	files, err := c.parts.Files(ctx, ids)
	if err != nil {
		klog.V(3).InfoS("Cannot find where containers lie", "err", err)
	}
	out := make(map[string]written, len(files))
	for id, f := range files {
		var w written
		if f.Layer != "" {
			if bytes, inodes, err := volume.Measure(f.Layer); err == nil {
				w.layer = &amount{bytes, inodes}
			}
		}
		if f.LogFiles > 0 {
			w.log = &amount{f.Logs, f.LogFiles}
		}
		out[id] = w
	}
	return out
}

func (c *Collector) disk(path string) *host.Disk {
	d, err := c.parts.Disk(path)
	if err != nil {
		klog.V(3).InfoS("Cannot measure a disk", "path", path, "err", err)
		return nil
	}
	return &d
}

// ended says that a container's files vanished while they were read.
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
