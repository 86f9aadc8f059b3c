// Package admit decides which pods may start on this node, before their workers exist.
//
//	worker.Manager: a new pod -> Admitter.Admit(pod) -> nil: worker starts; pod.Rejection: status Failed with its reason
//
// It is the only place that weighs pods against each other: resources, ports, the number of pods. The Manager's goroutine calls it in order
// of arrival; a refused pod is never considered again. Reasons and messages are upstream's, because users and controllers search for them.
// From package pod it uses only types; pod never imports this package.
package admit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Reasons of rejections, as in upstream. For resources, the reason is OutOf followed by the resource's name.
const (
	ReasonOSLabel         = "PodOSSelectorNodeLabelDoesNotMatch"
	ReasonOS              = "PodOSNotSupported"
	ReasonGroupsPolicy    = "SupplementalGroupsPolicyNotSupported"
	ReasonPodResources    = "PodLevelResourcesNotSupported"
	ReasonOutOf           = "OutOf"
	ReasonNodeAffinity    = "NodeAffinity"
	ReasonNodeName        = "NodeName"
	ReasonNodePorts       = "NodePorts"
	ReasonTaintToleration = "TaintToleration"
	ReasonUnexpected      = "UnexpectedAdmissionError"
	reasonUnsupported     = "PodFeatureUnsupported" // our own
)

// Config is what the node offers. Its functions are called at each Admit and must not block, except FreshNode.
type Config struct {
	NodeName string
	pod.Platform
	MaxPods int // kubelet field maxPods
	// Allocatable is what all pods together may request. A resource with a domain (vendor.com/device) that is missing here is not counted:
	// it may concern the cluster rather than this node.
	Allocatable func() v1.ResourceList
	// Node is this node's object as last seen, for labels, taints and features. Before it is known, it is nil and these are not checked.
	Node func() *v1.Node
	// FreshNode asks the API server. Another goroutine calls it if only labels keep a pod out: they may be newer than those in Node, and
	// the pod would fail. It may be nil and may return nil.
	FreshNode func(ctx context.Context) *v1.Node
	// Sysctls are those that pods may set. AppArmor reports whether the host has it. Windows ignores both.
	Sysctls  Sysctls
	AppArmor bool
	// Reserved returns the host ports of the node's own daemons, which no pod may use as a hostPort. nil: none.
	Reserved func() []Reserved
	// Preempted is called with the number of pods that must make room for a critical one, and the first missing resource. nil: not counted.
	Preempted func(resource string, pods int)
}

// Shortage is a resource that is insufficient for a pod. CPU is in thousandths, memory and storage in bytes, the rest in units.
type Shortage struct {
	Resource                  v1.ResourceName
	Requested, Used, Capacity int64
}

// Missing is the amount that must be freed.
func (s Shortage) Missing() int64 { return s.Requested - (s.Capacity - s.Used) }

func (s Shortage) message() string {
	return fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", s.Resource, s.Requested, s.Used, s.Capacity)
}

// Admitter implements pod.Admitter. Only one goroutine may call Admit, Adopt and Release; any may call Allocated.
type Admitter struct {
	cfg    Config
	pods   map[types.UID]holding
	used   amounts
	shared atomic.Pointer[v1.ResourceList] // what Allocated returns

	mu    sync.Mutex
	fresh map[types.UID]*v1.Node // FreshNode's answer for a pod that is to be admitted again
}

var _ pod.Admitter = (*Admitter)(nil)

// holding is what an admitted pod holds.
type holding struct {
	name     string // namespace/name, for messages
	requests amounts
	ports    []hostPort
	qos      v1.PodQOSClass
	priority *int32
	critical bool
	ending   bool // it was asked to make room for another
}

// amounts are requests in the units of Shortage.
type amounts map[v1.ResourceName]int64

// New returns an Admitter that holds nothing.
func New(cfg Config) *Admitter {
	a := &Admitter{cfg: cfg, pods: map[types.UID]holding{}, used: amounts{}, fresh: map[types.UID]*v1.Node{}}
	a.publish()
	return a
}

// Admit admits p or returns why not. An admitted pod is weighed again without its own holding, and keeps it if refused. If the answer
// depends on the API server, the Rejection has the question to Ask first.
func (a *Admitter) Admit(p *v1.Pod) *pod.Rejection {
	if r := a.checkHost(p); r != nil {
		return r
	}
	want := holdingOf(p)
	missing := a.shortages(p.UID, want.requests, false)
	misfit := a.misfit(p, want, a.cfg.Node())
	if misfit != nil && misfit.Reason == ReasonNodeAffinity && len(missing) == 0 && a.cfg.FreshNode != nil {
		node, asked := a.answer(p.UID)
		if !asked {
			question := pod.Question(func(ctx context.Context) { a.ask(ctx, p.UID) })
			misfit.Ask = &question
			return misfit
		}
		if node != nil {
			misfit = a.misfit(p, want, node)
		}
	}
	if len(missing) > 0 && want.critical {
		if misfit != nil { // ending others would not help
			return misfit
		}
		return a.preempt(p, want, missing)
	}
	if len(missing) > 0 {
		return &pod.Rejection{Reason: ReasonOutOf + string(missing[0].Resource), Message: missing[0].message()}
	}
	if misfit != nil {
		return misfit
	}
	a.hold(p.UID, want)
	return nil
}

// ask reads the current Node from the API server, for one pod.
func (a *Admitter) ask(ctx context.Context, uid types.UID) {
	var node *v1.Node
	defer func() { // even after a panic: the answer is then unknown
		a.mu.Lock()
		defer a.mu.Unlock()
		a.fresh[uid] = node
	}()
	node = a.cfg.FreshNode(ctx)
}

// answer removes and returns the answer for a pod; ok is false if there is none.
func (a *Admitter) answer(uid types.UID) (node *v1.Node, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node, ok = a.fresh[uid]
	delete(a.fresh, uid)
	return node, ok
}

// Adopt admits p whatever it requests: it already runs.
func (a *Admitter) Adopt(p *v1.Pod) { a.hold(p.UID, holdingOf(p)) }

// Resize weighs the new requests of an admitted pod (KEP-1287): Infeasible if this node could never satisfy them, Deferred if other pods
// currently hold too much. Only CPU and memory can be resized. A resource that does not grow is always granted, even on an overcommitted
// node.
func (a *Admitter) Resize(p *v1.Pod) *pod.Rejection {
	if a.cfg.OS == "windows" {
		return &pod.Rejection{Reason: v1.PodReasonInfeasible, Message: "In-place pod resize is not supported on this node"}
	}
	if static(p) {
		return &pod.Rejection{Reason: v1.PodReasonInfeasible, Message: "In-place resize of static-pods is not supported"}
	}
	want := holdingOf(p)
	held := a.pods[p.UID]
	allocatable := a.cfg.Allocatable()
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		capacity := amount(name, allocatable[name])
		if want.requests[name] > held.requests[name] && want.requests[name] > capacity {
			return &pod.Rejection{Reason: v1.PodReasonInfeasible, Message: fmt.Sprintf(
				"Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, want.requests[name], capacity)}
		}
	}
	for _, s := range a.shortages(p.UID, want.requests, false) {
		if (s.Resource == v1.ResourceCPU || s.Resource == v1.ResourceMemory) && s.Requested > held.requests[s.Resource] {
			return &pod.Rejection{Reason: v1.PodReasonDeferred, Message: s.message()}
		}
	}
	a.hold(p.UID, want)
	return nil
}

// Release frees what a pod held. A pod that holds nothing is not an error.
func (a *Admitter) Release(uid types.UID) {
	a.answer(uid)
	held, ok := a.pods[uid]
	if !ok {
		return
	}
	delete(a.pods, uid)
	a.add(held.requests, -1)
	a.publish()
}

// Allocated is the sum of the requests of all admitted pods, including the number of pods. Any goroutine may call it. It shows the state
// after the last completed Admit, Adopt or Release. The caller owns the list.
func (a *Admitter) Allocated() v1.ResourceList { return a.shared.Load().DeepCopy() }

func (a *Admitter) hold(uid types.UID, h holding) {
	a.add(a.pods[uid].requests, -1)
	h.ending = a.pods[uid].ending
	a.pods[uid] = h
	a.add(h.requests, +1)
	a.publish()
}

func (a *Admitter) add(requests amounts, sign int64) {
	for name, n := range requests {
		if a.used[name] += sign * n; a.used[name] == 0 {
			delete(a.used, name)
		}
	}
}

func (a *Admitter) publish() {
	list := v1.ResourceList{v1.ResourcePods: *resource.NewQuantity(int64(len(a.pods)), resource.DecimalSI)}
	for name, n := range a.used {
		switch name {
		case v1.ResourceCPU:
			list[name] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		case v1.ResourceMemory, v1.ResourceEphemeralStorage:
			list[name] = *resource.NewQuantity(n, resource.BinarySI)
		default:
			list[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	a.shared.Store(&list)
}

// checkHost checks what does not depend on other pods or on labels.
func (a *Admitter) checkHost(p *v1.Pod) *pod.Rejection {
	if os, ok := p.Labels[v1.LabelOSStable]; ok && os != a.cfg.OS {
		return &pod.Rejection{Reason: ReasonOSLabel, Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if p.Spec.OS != nil && string(p.Spec.OS.Name) != a.cfg.OS {
		return &pod.Rejection{Reason: ReasonOS, Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if a.cfg.OS == "windows" && helper.IsPodLevelResourcesSet(p) {
		return &pod.Rejection{Reason: ReasonPodResources, Message: "pod-level resources are not supported on Windows"}
	}
	if sc := p.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		node := a.cfg.Node()
		if node == nil || node.Status.Features == nil || node.Status.Features.SupplementalGroupsPolicy == nil || !*node.Status.Features.SupplementalGroupsPolicy {
			return &pod.Rejection{Reason: ReasonGroupsPolicy, Message: "SupplementalGroupsPolicy=Strict is not supported in this node"}
		}
	}
	if a.cfg.OS == "windows" {
		if err := podspec.CheckIsolation(p); err != nil && a.cfg.HyperVContainer {
			return &pod.Rejection{Reason: reasonUnsupported, Message: err.Error()}
		}
		return nil
	}
	if r := a.cfg.Sysctls.refuse(p); r != nil {
		return r
	}
	return refuseAppArmor(p, a.cfg.AppArmor)
}

// shortages lists the missing resources for requests, assuming that the pod uid holds nothing: pods first, then CPU, memory, storage, the
// rest by name. later assumes that the pods that were asked to make room have ended.
func (a *Admitter) shortages(uid types.UID, requests amounts, later bool) []Shortage {
	var out []Shortage
	count, free := len(a.pods), amounts{}
	for other, held := range a.pods {
		if other == uid || later && held.ending {
			count--
			for name, n := range held.requests {
				free[name] += n
			}
		}
	}
	if count+1 > a.cfg.MaxPods {
		out = append(out, Shortage{Resource: v1.ResourcePods, Requested: 1, Used: int64(count), Capacity: int64(a.cfg.MaxPods)})
	}
	allocatable := a.cfg.Allocatable()
	for _, name := range sorted(requests) {
		capacity, known := allocatable[name]
		if requests[name] == 0 || (!known && extended(name)) {
			continue
		}
		s := Shortage{Resource: name, Requested: requests[name], Used: a.used[name] - free[name], Capacity: amount(name, capacity)}
		if s.Missing() > 0 {
			out = append(out, s)
		}
	}
	return out
}

// misfit checks p against the Node object and other pods' ports.
func (a *Admitter) misfit(p *v1.Pod, want holding, node *v1.Node) *pod.Rejection {
	predicate := func(reason, message string) *pod.Rejection {
		return &pod.Rejection{Reason: reason, Message: fmt.Sprintf("Predicate %s failed: %s", reason, message)}
	}
	if node != nil {
		if fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node); err != nil || !fits {
			return predicate(ReasonNodeAffinity, "node(s) didn't match Pod's node affinity/selector")
		}
	}
	if p.Spec.NodeName != "" && p.Spec.NodeName != a.cfg.NodeName {
		return predicate(ReasonNodeName, "node(s) didn't match the requested node name")
	}
	if port, holder := a.reserved(p, want.ports); holder != "" {
		return predicate(ReasonNodePorts, fmt.Sprintf("node(s) didn't have free ports for the requested pod ports: %s is the %s's; want another hostPort", port, holder))
	}
	if port, holder := a.portConflict(p.UID, want.ports); holder != "" {
		return predicate(ReasonNodePorts, fmt.Sprintf("node(s) didn't have free ports for the requested pod ports: %s is held by pod %s", port, holder))
	}
	if node != nil && !static(p) {
		taint, untolerated := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, p.Spec.Tolerations,
			func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }, false)
		if untolerated {
			return predicate(ReasonTaintToleration, "node(s) had taints that the pod didn't tolerate: "+taint.ToString())
		}
	}
	return nil
}

// portConflict finds one of ports that a pod other than uid holds. It returns the first such pod by name, so that messages are stable.
func (a *Admitter) portConflict(uid types.UID, ports []hostPort) (port hostPort, holder string) {
	if len(ports) == 0 {
		return hostPort{}, ""
	}
	for other, held := range a.pods {
		if other == uid || (holder != "" && held.name > holder) {
			continue
		}
		for _, p := range ports {
			if slices.ContainsFunc(held.ports, p.conflicts) {
				port, holder = p, held.name
				break
			}
		}
	}
	return port, holder
}

func holdingOf(p *v1.Pod) holding {
	h := holding{name: p.Namespace + "/" + p.Name, requests: amounts{}, ports: hostPorts(p), qos: p.Status.QOSClass, priority: p.Spec.Priority, critical: podspec.Critical(p)}
	for name, quantity := range helper.PodRequests(p, helper.PodResourcesOptions{}) {
		h.requests[name] = amount(name, quantity)
	}
	return h
}

func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// sorted lists the resources in the order in which shortages are reported.
func sorted(requests amounts) []v1.ResourceName {
	first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	rank := func(name v1.ResourceName) int {
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	names := make([]v1.ResourceName, 0, len(requests))
	for name := range requests {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b v1.ResourceName) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(string(a), string(b))
	})
	return names
}

// extended reports whether a resource is not one of Kubernetes' own: its name has a domain other than kubernetes.io.
func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// static reports whether p came from a file or URL.
func static(p *v1.Pod) bool {
	source := p.Annotations["kubernetes.io/config.source"]
	return source != "" && source != "api"
}
