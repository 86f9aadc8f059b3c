package dockertest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

type event = events.Message

// emit sends the event of a container. The caller holds the lock.
func (e *Engine) emit(b *box, action events.Action) {
	attributes := maps.Clone(b.config.Labels)
	attributes["name"], attributes["image"] = b.name, b.config.Image // overrides labels of that name
	e.tell(events.ContainerEventType, action, events.Actor{ID: b.id, Attributes: attributes})
}

// tell sends an event. The caller holds the lock.
func (e *Engine) tell(kind events.Type, action events.Action, actor events.Actor) {
	now := e.clock.Now()
	e.events = append(e.events, event{
		//lint:ignore SA1019 engines still send the deprecated fields, and old clients read them
		Status: string(action), ID: actor.ID, Type: kind, Action: action, Actor: actor,
		Scope: "local", Time: now.Unix(), TimeNano: now.UnixNano(),
	})
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e systemAPI) streamEvents(w http.ResponseWriter, r *http.Request) {
	args, err := filters.FromJSON(r.URL.Query().Get("filters"))
	if err != nil {
		refuse(w, http.StatusBadRequest, "invalid filter: %v", err)
		return
	}
	e.mu.Lock()
	at, down := len(e.events), e.down
	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	encoder := json.NewEncoder(w)
	for {
		e.mu.Lock()
		news, changed, restarted := e.events[at:], e.changed, e.down != down
		at = len(e.events)
		e.mu.Unlock()
		if restarted {
			return
		}
		for _, event := range news {
			if matches(args, event) && encoder.Encode(event) != nil {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-down:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func matches(args filters.Args, event event) bool {
	action, _, _ := strings.Cut(string(event.Action), ":")
	if wanted := args.Get("event"); len(wanted) > 0 && !slices.Contains(wanted, action) {
		return false
	}
	return (!args.Contains("type") || args.ExactMatch("type", string(event.Type))) &&
		(!args.Contains("container") || args.ExactMatch("container", event.Actor.ID)) &&
		args.MatchKVList("label", event.Actor.Attributes)
}
