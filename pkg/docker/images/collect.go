package images

import (
	"context"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// Use is an image, and whether it may be removed.
type Use struct {
	ID    string
	Names []string // tags and digests
	Size  int64    // bytes, those that it shares with others among them
	// Used says that any container, running or not, was made from it.
	Used bool
	// Pinned says that it is the infra container's.
	Pinned bool
}

// ImageUses lists all images of the engine.
func (s *Store) ImageUses(ctx context.Context) ([]Use, error) {
	var all []image.Summary
	var containers []container.Summary
	err := s.engine.Call(ctx, "list images and who uses them", func(ctx context.Context, c *client.Client) (err error) {
		// Images first: a container that comes later is of an image that is in the list, or of a newer one.
		if all, err = c.ImageList(ctx, image.ListOptions{}); err != nil {
			return err
		}
		containers, err = c.ContainerList(ctx, container.ListOptions{All: true})
		return err
	})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for i := range containers {
		used[containers[i].ImageID] = true
	}
	infra := ""
	if s.cfg.Infra != "" {
		pinned, ok, err := s.Lookup(ctx, s.cfg.Infra)
		if err != nil {
			return nil, err
		}
		if ok {
			infra = pinned.ID
		}
	}
	out := make([]Use, 0, len(all))
	for _, s := range all {
		out = append(out, Use{ID: s.ID, Names: namesOf(s), Size: s.Size, Used: used[s.ID], Pinned: s.ID == infra})
	}
	return out, nil
}

// namesOf are the names by which an image can be asked for.
func namesOf(s image.Summary) []string {
	return slices.DeleteFunc(slices.Concat(s.RepoDigests, s.RepoTags), func(name string) bool { return strings.HasPrefix(name, "<none>") })
}

// RemoveImage removes an image under all its names. One that is gone is no error. Nothing is forced: of what a container uses the engine keeps
// the last name, and the image.
func (s *Store) RemoveImage(ctx context.Context, id string) error {
	defer s.cache.change() // the event of it may come later
	return s.engine.Call(ctx, "remove image "+id, func(ctx context.Context, c *client.Client) error {
		answer, err := c.ImageInspect(ctx, id)
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		names := namesOf(image.Summary{RepoTags: answer.RepoTags, RepoDigests: answer.RepoDigests})
		slices.Reverse(names) // with the last tag of a repository the engine drops its digests too
		for _, name := range append(names, id) {
			if _, err := c.ImageRemove(ctx, name, image.RemoveOptions{PruneChildren: true}); err != nil && !cerrdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
}
