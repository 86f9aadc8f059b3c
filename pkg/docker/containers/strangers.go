package containers

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
)

// OfOthers returns the names of the containers, running or not, that another kubelet made for pods, sorted. This one neither ends nor counts them, and
// cannot run the same pods beside them.
func (ob *Observer) OfOthers(ctx context.Context) (names []string, err error) {
	var list []container.Summary
	err = ob.engine.Call(ctx, "list containers of other kubelets", func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.ContainerList(ctx, container.ListOptions{All: true, Filters: identity.Others()})
		return err
	})
	for i := range list {
		if identity.OfAnother(list[i].Labels) && len(list[i].Names) > 0 {
			names = append(names, strings.TrimPrefix(list[i].Names[0], "/"))
		}
	}
	slices.Sort(names)
	return names, err
}

// maxTold is how many strangers are logged individually.
const maxTold = 20

// strangers are the containers that wrongly claim to belong to a pod: what is wrong with each, by id.
type strangers struct {
	mu     sync.Mutex
	logged map[string]error
}

// log logs each container of found once while it exists. It keeps found.
func (s *strangers) log(found map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, why := range found {
		if _, logged := s.logged[id]; !logged && len(found) <= maxTold {
			klog.InfoS("Ignoring a container with the labels of a pod: this kubelet did not create it", "container", engine.ShortID(id), "why", why)
		}
	}
	if len(found) > maxTold && len(s.logged) <= maxTold {
		klog.InfoS("Ignoring containers with the labels of pods: this kubelet did not create them", "containers", len(found))
	}
	s.logged = found
}
