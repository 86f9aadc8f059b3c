package dockertest

import (
	"encoding/json"
	"net/http"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
)

// updateContainer changes limits as the engine does: 0 means unchanged.
func (e containerAPI) updateContainer(w http.ResponseWriter, r *http.Request, b *box) {
	var in container.UpdateConfig
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, "invalid JSON: %v", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opts.windows() && b.running {
		refuse(w, http.StatusInternalServerError, "Cannot update container %s: not implemented", b.id)
		return
	}
	next := *b.host
	next.Resources = merged(b.host.Resources, in.Resources)
	status, message := 0, ""
	switch {
	case in.Memory > 0 && in.MemorySwap == 0 && b.host.MemorySwap > 0 && in.Memory > b.host.MemorySwap:
		status, message = bad("Memory limit should be smaller than already set memoryswap limit, update the memoryswap at the same time")
	case b.host.NanoCPUs > 0 && (in.CPUQuota > 0 || in.CPUPeriod > 0):
		status, message = bad("Conflicting options: CPU Quota cannot be updated as NanoCPUs has already been set")
	default:
		status, message = e.validate(b.config, &next)
	}
	if status != 0 {
		refuse(w, status, "%s", message)
		return
	}
	b.host = &next
	e.emit(b, events.ActionUpdate)
	answer(w, http.StatusOK, container.UpdateResponse{Warnings: []string{}})
}

func merged(r, in container.Resources) container.Resources {
	set := func(to *int64, from int64) {
		if from != 0 {
			*to = from
		}
	}
	set(&r.CPUShares, in.CPUShares)
	set(&r.CPUQuota, in.CPUQuota)
	set(&r.CPUPeriod, in.CPUPeriod)
	set(&r.Memory, in.Memory)
	set(&r.MemorySwap, in.MemorySwap)
	return r
}
