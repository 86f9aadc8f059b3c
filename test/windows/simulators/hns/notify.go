package hns

import (
	"context"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Values of Microsoft's HCN_NOTIFICATIONS that service callbacks receive.
const (
	notifyNetworkCreate = 2
	notifyNetworkDelete = 4
	notifyDisconnect    = 0x01000000
)

// Notifies is the function that subscribes to notifications (Microsoft, "HCN_Notification_Callback").
const Notifies = "HcnRegisterServiceCallback"

// Subscribe answers a subscription with its result, then sends notifications until ctx ends or send fails. A subscription outlives the service,
// but then receives nothing.
func (h *HNS) Subscribe(ctx context.Context, send func(value uint32) error) {
	events := make(chan uint32, 100)
	h.mu.Lock()
	result := Result(0)
	if h.running {
		h.subscribers[events] = true
	} else {
		result = ServiceNotActive
	}
	h.log.Add(calls.Call{Service: "hns", Function: Notifies, Result: uint32(result)})
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.subscribers, events)
		h.mu.Unlock()
	}()
	if send(uint32(result)) != nil || result != 0 {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			if send(event) != nil {
				return
			}
		}
	}
}

// notify informs all subscribers. One that does not read misses the event. The caller holds the lock.
func (h *HNS) notify(event uint32) {
	for events := range h.subscribers {
		select {
		case events <- event:
		default:
		}
	}
}
