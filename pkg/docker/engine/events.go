package engine

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Reconnect is the back-off between attempts to reach a stopped engine: 100 ms, doubled after each failure, at most 5 s.
func Reconnect() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: math.MaxInt32}
}

// Stream is a subscription to one kind of events: a filter, and callbacks for connection, disconnection and each event.
type Stream struct {
	// Client is Negotiate or API: how the stream connects.
	Client   func(context.Context) (*client.Client, error)
	Filter   filters.Args
	Up, Down func()
	Each     func(events.Message)
}

// Follow reads the stream, and reconnects after it breaks, until ctx ends. Up, Down and Each are called one at a time.
func (s Stream) Follow(ctx context.Context, e *Client) {
	backoff := Reconnect()
	for {
		connected, err := s.watch(ctx, e)
		if ctx.Err() != nil {
			return
		}
		if connected {
			backoff = Reconnect()
		}
		pause := backoff.Step()
		klog.V(2).InfoS("Docker's event stream ended; reconnecting", "host", e.host, "after", pause, "reason", err)
		select {
		case <-e.clock.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// watch reads one event stream to its end.
func (s Stream) watch(ctx context.Context, e *Client) (connected bool, err error) {
	inner, stop, cancel := e.Within(ctx, e.timeout)
	defer cancel()
	c, err := s.Client(inner)
	if err != nil {
		return false, e.Explain(ctx, inner, "connect to the engine", err)
	}
	messages, errs := c.Events(inner, events.ListOptions{Filters: s.Filter}) // returns when the engine has answered
	stop()
	select {
	case err := <-errs:
		return false, e.Explain(ctx, inner, "watch the engine's events", err)
	default:
	}
	s.Up()
	defer s.Down()
	for {
		select {
		case message := <-messages:
			s.Each(message)
		case err := <-errs:
			if err == nil {
				err = errors.New("closed by the engine")
			}
			return true, err
		}
	}
}
