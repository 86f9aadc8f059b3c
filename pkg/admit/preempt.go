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

// preempt makes room for a critical pod that only lacks resources. The pod is admitted immediately, beside the pods that must end, so that
// no other pod takes the freed resources. It must be admitted again until those pods have ended.
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

// victims chooses the pods to end to free lack, as upstream does: as few resources of guaranteed pods as possible, then as few of burstable
// pods, and within a class the pods that fit the need best.
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
		slices.SortFunc(list, func(a, b candidate) int { // a stable order; pods with lower requests come first
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

// candidate is a pod that may be chosen to end.
type candidate struct {
	uid types.UID
	holding
}

// mayPreempt reports whether other may end for h: h is critical and other is not, or h has a higher priority.
func (h holding) mayPreempt(other holding) bool {
	if h.critical && !other.critical {
		return true
	}
	return h.priority != nil && other.priority != nil && *h.priority > *other.priority
}

// gives is the amount of a resource that the pod's end frees.
func (c candidate) gives(name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return c.requests[name]
}

// without returns the remaining shortage after pods have ended, omitting satisfied resources.
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

// choose picks pods from list, which must suffice, until nothing is missing. It always picks the pod that leaves the smallest remaining
// shortage, with all resources weighted equally; among equals, the first.
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

// String formats requirements as upstream does.
func (a amounts) String() string {
	var b strings.Builder
	for _, name := range sorted(a) {
		fmt.Fprintf(&b, "(res: %s, q: %d), ", name, a[name])
	}
	return "[" + b.String() + "]"
}
