package podspec

import (
	v1 "k8s.io/api/core/v1"
)

// QOSOf is the pod's QoS class: as set by the API server or, for static pods, as it would set it.
func QOSOf(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	if r := pod.Spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		return qosClass([]v1.ResourceRequirements{*r})
	}
	var all []v1.ResourceRequirements
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			all = append(all, list[i].Resources)
		}
	}
	return qosClass(all)
}

func qosClass(all []v1.ResourceRequirements) v1.PodQOSClass {
	any, guaranteed := false, true
	for _, r := range all {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, request := r.Limits[name], r.Requests[name]
			any = any || limit.Sign() > 0 || request.Sign() > 0
			// A limit without a request implies an equal request.
			if limit.Sign() <= 0 || (request.Sign() > 0 && limit.Cmp(request) != 0) {
				guaranteed = false
			}
		}
	}
	switch {
	case !any:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}
