package admit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// preempt makes room for a critical pod for which nothing but resources lack. The pod is in from now on, beside those that have to end
// for it, so that no other pod takes the room that they leave; it has to be admitted again until they have gone.
func (a *Admitter) preempt(p *v1.Pod, want holding, missing []Shortage) *pod.Rejection {
	victims, err := a.victims(want, a.shortages(p.UID, want.requests, true))
	if err != nil {
		return &pod.Rejection{Reason: ReasonUnexpected, Message: fmt.Sprintf("Unexpected error while attempting to recover from admission failure: %v", err)}
	}
	for _, uid := range victims {
		held := a.pods[uid]
		held.ending = true
		a.pods[uid] = held
	}
	a.hold(p.UID, want)
	if a.cfg.Preempted != nil && len(victims) > 0 {
		a.cfg.Preempted(string(missing[0].Resource), len(victims))
	}
	return &pod.Rejection{Reason: ReasonOutOf + string(missing[0].Resource), Message: missing[0].message(), Preemption: &pod.Preemption{Victims: victims}}
}

// victims chooses who has to end so that lack is given back, as upstream does: as little of guaranteed pods as possible, then as little
// of burstable ones, and of pods of one class those that fit what lacks best.
func (a *Admitter) victims(preemptor holding, lack []Shortage) ([]types.UID, error) {
	need := amounts{}
	for _, s := range lack {
		need[s.Resource] = s.Missing()
	}
	byClass := map[v1.PodQOSClass][]candidate{}
	for uid, held := range a.pods {
		if !held.ending && preemptor.mayPreempt(held) {
			byClass[held.qos] = append(byClass[held.qos], candidate{uid, held})
		}
	}
	for _, list := range byClass {
		slices.SortFunc(list, func(a, b candidate) int { // for a stable choice; then what asks for less comes first
			return cmp.Or(cmp.Compare(a.requests[v1.ResourceMemory], b.requests[v1.ResourceMemory]),
				cmp.Compare(a.requests[v1.ResourceCPU], b.requests[v1.ResourceCPU]), strings.Compare(a.name, b.name))
		})
	}
	bestEffort, burstable, guaranteed := byClass[v1.PodQOSBestEffort], byClass[v1.PodQOSBurstable], byClass[v1.PodQOSGuaranteed]
	if left := need.without(bestEffort, burstable, guaranteed); len(left) > 0 {
		return nil, fmt.Errorf("preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: %s", left)
	}
	fromGuaranteed := choose(guaranteed, need.without(bestEffort, burstable))
	fromBurstable := choose(burstable, need.without(bestEffort, fromGuaranteed))
	fromBestEffort := choose(bestEffort, need.without(fromBurstable, fromGuaranteed))
	var out []types.UID
	for _, c := range slices.Concat(fromBestEffort, fromBurstable, fromGuaranteed) {
		out = append(out, c.uid)
	}
	return out, nil
}

// candidate is a pod that may have to end.
type candidate struct {
	uid types.UID
	holding
}

// mayPreempt says whether other may have to end for h: what is not critical for what is, and what has a lower priority.
func (h holding) mayPreempt(other holding) bool {
	if h.critical && !other.critical {
		return true
	}
	return h.priority != nil && other.priority != nil && *h.priority > *other.priority
}

// gives is how much of a resource comes back when the pod ends.
func (c candidate) gives(name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return c.requests[name]
}

// without is what still lacks when pods have ended; what does not lack is not in it.
func (a amounts) without(pods ...[]candidate) amounts {
	left := amounts{}
	for name, n := range a {
		for _, list := range pods {
			for _, c := range list {
				n -= c.gives(name)
			}
		}
		if n > 0 {
			left[name] = n
		}
	}
	return left
}

// choose takes pods out of list, which suffice, until nothing lacks: each time the one that leaves the smallest part of what lacks, all
// resources weighing the same, and of two such the one that comes first.
func choose(list []candidate, need amounts) (chosen []candidate) {
	list = slices.Clone(list)
	for len(need) > 0 && len(list) > 0 {
		best, distance := 0, math.Inf(1)
		for i, c := range list {
			if d := c.distance(need); d < distance {
				best, distance = i, d
			}
		}
		chosen = append(chosen, list[best])
		need = need.without(list[best : best+1])
		list = slices.Delete(list, best, best+1)
	}
	return chosen
}

func (c candidate) distance(need amounts) (sum float64) {
	for name, n := range need {
		if left := n - c.gives(name); left > 0 {
			part := float64(left) / float64(n)
			sum += part * part
		}
	}
	return sum
}

// String is as upstream lists requirements.
func (a amounts) String() string {
	var b strings.Builder
	for _, name := range sorted(a) {
		fmt.Fprintf(&b, "(res: %s, q: %d), ", name, a[name])
	}
	return "[" + b.String() + "]"
}
