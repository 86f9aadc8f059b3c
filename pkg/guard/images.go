package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
)

// ImagePolicy says when to remove images that no container uses.
type ImagePolicy struct {
	// High and Low are percentages of the file system that holds the images: from High on, the oldest are removed until
	// Low is reached (imageGCHighThresholdPercent, imageGCLowThresholdPercent). High 100: never because of their size.
	High, Low int
	// MinAge is how long an image stays at least after it was first seen (imageMinimumGCAge): the client that pulled it
	// may be about to use it.
	MinAge time.Duration
	// MaxAge is how long an image stays at most after its last use (imageMaximumGCAge); 0: no limit.
	MaxAge time.Duration
}

// Check returns an error that begins with the wrong flag.
func (p ImagePolicy) Check() error {
	switch {
	case p.High < 0 || p.High > 100:
		return fmt.Errorf("--image-gc-high-threshold=%d: want a percentage from 0 to 100", p.High)
	case p.Low < 0 || p.Low > 100 || p.Low >= p.High && p.High > 0:
		return fmt.Errorf("--image-gc-low-threshold=%d: want a percentage below --image-gc-high-threshold=%d", p.Low, p.High)
	case p.MinAge < 0:
		return fmt.Errorf("--minimum-image-ttl-duration=%s: want 0 or more", p.MinAge)
	case p.MaxAge < 0 || p.MaxAge > 0 && p.MaxAge <= p.MinAge:
		return fmt.Errorf("--maximum-image-ttl-duration=%s: want more than --minimum-image-ttl-duration=%s, or 0 for no such limit", p.MaxAge, p.MinAge)
	}
	return nil
}

// idle reports that images are never removed because of age or disk usage.
func (p ImagePolicy) idle() bool { return p.High >= 100 && p.MaxAge == 0 }

// memory is when an image was seen and used. It starts with the agent: engines do not record when an image was used.
type memory struct{ first, used time.Time }

// images holds the memory of each image by ID.
type images map[string]memory

// note records which images exist and which are in use.
func (m images) note(all []docker.ImageUse, now time.Time) {
	there := map[string]bool{}
	for _, i := range all {
		there[i.ID] = true
		known, ok := m[i.ID]
		if !ok {
			known.first = now
		}
		if i.Used {
			known.used = now
		}
		m[i.ID] = known
	}
	maps.DeleteFunc(m, func(id string, _ memory) bool { return !there[id] })
}

// last returns when an image was last used, or else first seen.
func (m memory) last() time.Time {
	if m.used.After(m.first) {
		return m.used
	}
	return m.first
}

// unused returns the images that may be removed, least recently used first. Pinned ones never may. It is pure.
func (m images) unused(all []docker.ImageUse, policy ImagePolicy, now time.Time) []docker.ImageUse {
	var out []docker.ImageUse
	for _, i := range all {
		if !i.Used && !i.Pinned && now.Sub(m[i.ID].first) >= policy.MinAge {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b docker.ImageUse) int {
		x, y := m[a.ID], m[b.ID]
		return cmp.Or(x.used.Compare(y.used), x.first.Compare(y.first), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// outlived returns those of unused that exceed the policy's MaxAge.
func (m images) outlived(unused []docker.ImageUse, policy ImagePolicy, now time.Time) []docker.ImageUse {
	if policy.MaxAge == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(unused), func(i docker.ImageUse) bool { return now.Sub(m[i.ID].last()) <= policy.MaxAge })
}

// excess returns how many bytes to free on the images' disk; 0: none.
func (p ImagePolicy) excess(disk host.Disk) uint64 {
	available := min(disk.Available, disk.Capacity)
	if disk.Capacity == 0 || p.High >= 100 || 100-int(available*100/disk.Capacity) < p.High {
		return 0
	}
	want := disk.Capacity / 100 * uint64(100-p.Low)
	return want - min(want, available)
}

const (
	imagePeriod     = 5 * time.Minute
	reasonDiskFull  = "FreeDiskSpaceFailed"
	reasonCapacity  = "InvalidDiskCapacity"
	reasonImageFail = "ImageGCFailed"
)

// collectImages removes images according to the policy. Call it only from the loop.
func (g *Guard) collectImages(ctx context.Context) {
	if g.cfg.Images.idle() {
		return
	}
	if err := g.tryCollectImages(ctx); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Cannot keep images within their limits")
		g.parts.Events.NodeEvent(v1.EventTypeWarning, reasonImageFail, err.Error())
	}
}

func (g *Guard) tryCollectImages(ctx context.Context) error {
	unused, err := g.unusedImages(ctx)
	if err != nil {
		return err
	}
	now := g.parts.Clock.Now()
	old := g.images.outlived(unused, g.cfg.Images, now)
	_, err = g.removeImages(ctx, old, ^uint64(0), "age")
	if err != nil {
		return err
	}
	disk, err := g.parts.Disks.ImageDisk(ctx)
	if err != nil {
		return err
	}
	if disk.Capacity == 0 {
		const problem = "invalid capacity 0 on image filesystem"
		g.parts.Events.NodeEvent(v1.EventTypeWarning, reasonCapacity, problem)
		return errors.New(problem)
	}
	excess := g.cfg.Images.excess(disk)
	if excess == 0 {
		return nil
	}
	klog.InfoS("Removing images: the file system that holds them is too full", "capacity", disk.Capacity, "available", disk.Available, "excess", excess)
	rest := slices.DeleteFunc(unused, func(i docker.ImageUse) bool {
		return slices.ContainsFunc(old, func(o docker.ImageUse) bool { return o.ID == i.ID })
	})
	freed, err := g.removeImages(ctx, rest, excess, "space")
	if err != nil || freed >= excess {
		return err
	}
	message := fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %d bytes used). Failed to free sufficient space by "+
		"deleting unused images (freed %d bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
		100-disk.Available*100/disk.Capacity, disk.Capacity, freed)
	g.parts.Events.NodeEvent(v1.EventTypeWarning, reasonDiskFull, message)
	return errors.New(message)
}

// unusedImages lists the images that may be removed, and records which are in use.
func (g *Guard) unusedImages(ctx context.Context) ([]docker.ImageUse, error) {
	all, err := g.parts.Images.ImageUses(ctx)
	if err != nil {
		return nil, err
	}
	now := g.parts.Clock.Now()
	g.images.note(all, now)
	return g.images.unused(all, g.cfg.Images, now), nil
}

// removeImages removes images in order until so many bytes are free. It counts the sizes that the engine reports, but
// layers may be shared.
func (g *Guard) removeImages(ctx context.Context, list []docker.ImageUse, bytes uint64, reason string) (freed uint64, err error) {
	for _, i := range list {
		if freed >= bytes || ctx.Err() != nil {
			break
		}
		klog.InfoS("Removing an unused image", "id", i.ID, "names", i.Names, "size", i.Size)
		if problem := g.parts.Images.RemoveImage(ctx, i.ID); problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		freed += uint64(max(i.Size, 0))
		g.parts.Counts.ImageRemoved(reason)
	}
	return freed, err
}
