package containers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
)

// ready has the containers that were created before their sandbox ran, by name.
type ready struct {
	mu         sync.Mutex
	containers map[string]created
}

type created struct {
	id      string
	request convert.Creation
}

func (r *ready) add(id string, request convert.Creation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.containers == nil {
		r.containers = map[string]created{}
	}
	r.containers[request.Name] = created{id, request}
}

// take returns the container that was created by the same request, once; "" if there is none. One that was created by another request has to be
// replaced.
func (r *ready) take(request convert.Creation) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[request.Name]
	delete(r.containers, request.Name)
	if !ok || !reflect.DeepEqual(c.request, request) {
		return ""
	}
	return c.id
}

// drop forgets a container that is being removed.
func (r *ready) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.containers {
		if c.id == id {
			delete(r.containers, name)
		}
	}
}

// Prepare implements pod.Runtime: it creates the container. Errors are as for Apply.
func (a *Applier) Prepare(ctx context.Context, p *v1.Pod, step pod.Step) error {
	if step.Action != pod.StartContainer {
		return fmt.Errorf("step %q: want %q", step.Action, pod.StartContainer)
	}
	t, err := a.containerTarget(ctx, p, step)
	if err != nil {
		return err
	}
	creation, err := convert.Container(p, step, t)
	if err != nil {
		return failed(engine.ReasonConfig, err)
	}
	id, done, err := a.create(ctx, p, creation)
	switch {
	case err != nil:
		return failed(engine.ReasonCreate, err)
	case done:
		return failed(engine.ReasonCreate, errors.New("the container has already run"))
	}
	a.logs.Link(p, creation.Config.Labels, id)
	a.ready.add(id, creation)
	return nil
}
