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
	Size  int64    // bytes, including layers shared with other images
	// Used says that a container, running or not, was created from it.
	Used bool
	// Pinned says that it is the infra container's image.
	Pinned bool
}

// ImageUses lists all images of the engine.
func (s *Store) ImageUses(ctx context.Context) ([]Use, error) {
	var all []image.Summary
	var containers []container.Summary
	err := s.engine.Call(ctx, "list images and who uses them", func(ctx context.Context, c *client.Client) (err error) {
		// Images first: a container created later uses an image of the list, or a newer one.
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

// namesOf returns all names that can refer to an image.
func namesOf(s image.Summary) []string {
	return slices.DeleteFunc(slices.Concat(s.RepoDigests, s.RepoTags), func(name string) bool { return strings.HasPrefix(name, "<none>") })
}

// RemoveImage removes an image with all its names. A missing image is not an error. Nothing is forced: if a container uses the image, the engine
// keeps the image and its last name.
func (s *Store) RemoveImage(ctx context.Context, id string) error {
	defer s.cache.change() // the event may come later
	return s.engine.Call(ctx, "remove image "+id, func(ctx context.Context, c *client.Client) error {
		answer, err := c.ImageInspect(ctx, id)
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		names := namesOf(image.Summary{RepoTags: answer.RepoTags, RepoDigests: answer.RepoDigests})
		slices.Reverse(names) // when the last tag of a repository is removed, the engine drops its digests too
		for _, name := range append(names, id) {
			if _, err := c.ImageRemove(ctx, name, image.RemoveOptions{PruneChildren: true}); err != nil && !cerrdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
}
