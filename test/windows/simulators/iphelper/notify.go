package iphelper

import (
	"context"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// MIB_NOTIFICATION_TYPE.
const (
	changedParameter = 0
	added            = 1
	deleted          = 2
	initial          = 3
)

// The kinds of notifications.
const (
	kindRoute     = "NotifyRouteChange2"
	kindAddress   = "NotifyUnicastIpAddressChange"
	kindInterface = "NotifyIpInterfaceChange"
)

// event is one notification: the kind of change and its row, which is empty in an initial notification.
type event struct {
	kind uint32
	row  []byte
}

type subscriber struct {
	function string
	events   chan event
}

// Notifies reports whether function subscribes to changes.
func Notifies(function string) bool {
	return function == kindRoute || function == kindAddress || function == kindInterface
}

// Subscribe answers a subscription with its result, then sends changes until ctx ends or send fails. No change after the answer is lost. arguments
// are the family, which is ignored, and whether to confirm the subscription immediately (MibInitialNotification).
func (h *Host) Subscribe(ctx context.Context, function string, arguments []byte, send func(kind uint32, row []byte) error) {
	s := &subscriber{function, make(chan event, 1000)}
	h.mu.Lock()
	h.subscribers[s] = true
	if len(arguments) == 8 && le.Uint32(arguments[4:]) != 0 {
		s.events <- event{kind: initial}
	}
	h.log.Add(calls.Call{Service: "iphelper", Function: function})
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.subscribers, s)
		h.mu.Unlock()
	}()
	if send(0, nil) != nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-s.events:
			if send(e.kind, e.row) != nil {
				return
			}
		}
	}
}

// notify informs the subscribers of one kind. A subscriber that does not read misses it, as on Windows.
func (h *Host) notify(function string, kind uint32, row []byte) {
	for s := range h.subscribers {
		if s.function != function {
			continue
		}
		select {
		case s.events <- event{kind, row}:
		default:
		}
	}
}
