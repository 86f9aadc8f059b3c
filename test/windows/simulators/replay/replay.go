// Package replay is a host that answers from a recording (package record, `kubelet doctor --record`): HNS, HCS, netsh and the container engine. A
// request that the recording does not have is a deviation, which reports its difference from the nearest recorded request.
//
//	kubelet.exe --> shims, pipe --> Host --matching--> Exchange of the recording --> answer, or a deviation
//
// Requests may arrive in any order. A request that changes state is answered once per recorded occurrence. A read is answered with the recorded
// state that is nearest to what the requested changes lead to. IP Helper is simulated and gets the adapters that the recording has at that point.
package replay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/pkg/record"
)

// Host answers from a recording. It is safe for concurrent use.
type Host struct {
	rec record.Recording

	mu         sync.Mutex
	used       []bool
	position   int               // the last requested exchange that changed state: for adapters
	handles    map[string]string // handles given to the program, with their names in the recording
	last       uint64
	deviations []string
}

// New returns the host of a recording.
func New(rec record.Recording) *Host {
	rec.Exchanges = withObjects(rec.Exchanges)
	return &Host{rec: rec, used: make([]bool, len(rec.Exchanges)), position: -1, handles: map[string]string{}}
}

// withObjects replaces handles by the objects that they refer to: a program may open an object any number of times.
func withObjects(in []record.Exchange) (out []record.Exchange) {
	objects := map[string]string{} // handle to object
	for _, e := range in {
		switch {
		case strings.HasPrefix(e.Call, "HcnOpen"), e.Call == "HcsOpenComputeSystem":
			if len(e.Out) > 0 && len(e.In) > 0 {
				objects[record.TextOf(e.Out[0])] = strings.ToLower(record.TextOf(e.In[0]))
			}
		case strings.HasPrefix(e.Call, "HcnQuery") && len(e.Out) > 0 && len(e.In) > 0:
			var made struct{ ID string }
			if name := record.TextOf(e.In[0]); objects[name] == "" && json.Unmarshal(e.Out[0], &made) == nil {
				objects[name] = strings.ToLower(made.ID)
			}
		}
	}
	named := func(list []json.RawMessage) []json.RawMessage {
		list = slices.Clone(list)
		for i, raw := range list {
			if object := objects[record.TextOf(raw)]; object != "" {
				list[i] = record.Text("handle of " + object)
			}
		}
		return list
	}
	for _, e := range in {
		e.In, e.Out = named(e.In), named(e.Out)
		out = append(out, e)
	}
	return out
}

// Header returns the recording's description of the host.
func (h *Host) Header() record.Header { return h.rec.Header }

// Deviations returns the requests that are not in the recording, each in a few lines.
func (h *Host) Deviations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.deviations)
}

// Missing returns the recorded changes that the program did not request.
func (h *Host) Missing() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, e := range h.rec.Exchanges {
		if changes(e) && !h.used[i] && e.Service != record.IPHelper {
			out = append(out, fmt.Sprintf("not asked any more: exchange %d (%s): %s %s %s", e.N, e.Step, e.Service, e.Call, short(e.In)))
		}
	}
	return out
}

// Answer returns the recorded exchange for a request. If there is none, ok is false and the request is recorded as a
// deviation.
func (h *Host) Answer(service, call string, in []json.RawMessage) (e record.Exchange, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := record.Exchange{Service: service, Call: call, In: h.named(in)}
	best := h.match(asked)
	if best < 0 {
		h.deviations = append(h.deviations, h.explain(asked))
		return record.Exchange{}, false
	}
	h.used[best] = true
	e = h.rec.Exchanges[best]
	if changes(e) {
		h.position = max(h.position, best)
	}
	return h.handed(e), true
}

// match returns the index of the exchange for a request, or -1. A change gets its first occurrence that was not requested yet.
func (h *Host) match(asked record.Exchange) int {
	best, recorded, least := -1, false, distance{}
	for i, e := range h.rec.Exchanges {
		if e.Service != asked.Service || !same(e.Call, asked.Call) {
			continue
		}
		equal := len(differences(e.In, asked.In)) == 0
		switch {
		case !equal && !sameProperties(e, asked), changes(e) && h.used[i]:
			continue
		case changes(e):
			return i
		}
		recorded = recorded || equal
		if d := h.distance(asked, i); best < 0 || d.less(least) || d == least && h.used[best] {
			best, least = i, d
		}
	}
	if !recorded {
		return -1
	}
	return best
}

// distance counts the changes by which the host's state at a recorded read differs from the state that the program's requests have led to.
type distance struct{ near, far int } // changes that may affect the read; others

func (d distance) less(than distance) bool {
	return d.near < than.near || d.near == than.near && d.far < than.far
}

// distance returns the distance of the read at index i.
func (h *Host) distance(read record.Exchange, i int) (d distance) {
	for j, e := range h.rec.Exchanges {
		switch {
		case !changes(e) || failed(e) || e.Service == record.IPHelper || h.used[j] == (j < i):
		case affects(e, read):
			d.near++
		default:
			d.far++
		}
	}
	return d
}

// failed reports whether a change was refused.
func failed(e record.Exchange) bool {
	if e.Service == record.Engine {
		return e.Code >= 400
	}
	return e.Code != 0
}

// affects reports whether a change may affect a read: both are of the same service and, if known, of the same object or an engine's kind of object.
func affects(change, read record.Exchange) bool {
	if change.Service != read.Service || kind(change) != kind(read) {
		return false
	}
	object, known := objectOf(read)
	return !known || slices.ContainsFunc(change.In, func(raw json.RawMessage) bool { return strings.Contains(strings.ToLower(string(raw)), object) })
}

// objectOf returns the object of a query for properties.
func objectOf(e record.Exchange) (id string, known bool) {
	if len(e.In) == 0 || !strings.HasPrefix(e.Call, "HcnQuery") {
		return "", false
	}
	return strings.CutPrefix(record.TextOf(e.In[0]), "handle of ")
}

// sameProperties reports whether both are queries for the properties of one object: HNS answers them alike, whatever filter found the object.
func sameProperties(a, b record.Exchange) bool {
	one, known := objectOf(a)
	other, _ := objectOf(b)
	return known && one == other
}

// kind returns the kind of object in a request to an engine, or "" for other services.
func kind(e record.Exchange) string {
	if e.Service != record.Engine {
		return ""
	}
	parts := strings.FieldsFunc(e.Call, func(r rune) bool { return r == ' ' || r == '/' || r == '?' })
	return parts[min(1, len(parts)-1)]
}

// named returns the arguments with handles replaced by their names in the recording.
func (h *Host) named(in []json.RawMessage) []json.RawMessage {
	out := slices.Clone(in)
	for i, raw := range in {
		if name := h.handles[record.TextOf(raw)]; name != "" {
			out[i] = record.Text(name)
		}
	}
	return out
}

// handed returns an answer with a new handle: a program may open an object more often than the recording did.
func (h *Host) handed(e record.Exchange) record.Exchange {
	if len(e.Out) > 0 && strings.HasPrefix(record.TextOf(e.Out[0]), "handle ") {
		h.last++
		number := fmt.Sprint(0x1000 + h.last)
		h.handles[number] = record.TextOf(e.Out[0])
		e.Out = append([]json.RawMessage{record.Text(number)}, e.Out[1:]...)
	}
	return e
}

// changes reports whether an exchange changed the host.
func changes(e record.Exchange) bool {
	switch e.Service {
	case record.HNS, record.HCS:
		if e.Call == "HNSCall" {
			return len(e.In) > 0 && record.TextOf(e.In[0]) != "GET"
		}
		return strings.HasPrefix(e.Call, "HcnCreate") || strings.HasPrefix(e.Call, "HcnModify") || strings.HasPrefix(e.Call, "HcnDelete") || e.Call == "HcsModifyComputeSystem"
	case record.Engine:
		return !strings.HasPrefix(e.Call, "GET ") && !strings.HasPrefix(e.Call, "HEAD ")
	case record.Netsh:
		text := short(e.In)
		return strings.Contains(text, " add ") || strings.Contains(text, " delete ")
	case record.IPHelper:
		return !strings.HasPrefix(e.Call, "Get")
	}
	return false
}

// explain describes the request and its difference from the nearest exchange.
func (h *Host) explain(asked record.Exchange) string {
	text := fmt.Sprintf("not in the recording: %s %s %s", asked.Service, asked.Call, short(asked.In))
	nearest, fewest := -1, []string(nil)
	for i, e := range h.rec.Exchanges {
		if e.Service != asked.Service || !same(e.Call, asked.Call) {
			continue
		}
		if d := differences(e.In, asked.In); len(d) > 0 && (nearest < 0 || len(d) < len(fewest)) {
			nearest, fewest = i, d
		}
	}
	switch {
	case nearest < 0 && slices.ContainsFunc(h.rec.Exchanges, func(e record.Exchange) bool { return e.Service == asked.Service && same(e.Call, asked.Call) }):
		return text + "\n  it was recorded, and asked more often now"
	case nearest < 0:
		return text + "\n  nothing of that kind was recorded"
	}
	e := h.rec.Exchanges[nearest]
	const shown = 8
	if len(fewest) > shown {
		fewest = append(fewest[:shown], fmt.Sprintf("and %d more", len(fewest)-shown))
	}
	return fmt.Sprintf("%s\n  nearest is exchange %d (%s):\n    %s", text, e.N, e.Step, strings.Join(fewest, "\n    "))
}

// short returns the arguments on one line of limited length.
func short(in []json.RawMessage) string {
	var parts []string
	for _, raw := range in {
		parts = append(parts, string(raw))
	}
	text := strings.Join(parts, " ")
	const most = 400
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}
