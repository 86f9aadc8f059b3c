package node

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
)

// Inputs is everything that Status depends on.
type Inputs struct {
	Config    Config
	Now       time.Time
	Known     v1.NodeStatus // on the API server; zero for a new node
	Facts     host.Facts
	Disk      host.Disk
	Addresses []netip.Addr
	Engine    Runtime
	Pressure  Pressure
	// EngineErr and NetworkErr say why pods cannot start. Each makes the node not ready.
	EngineErr, NetworkErr error
	ShuttingDown          bool // the host
	// NetworkUnavailable is the condition of that type without its times; nil leaves the condition to others.
	NetworkUnavailable *v1.NodeCondition
	// Nil Images and VolumesInUse leave the known values.
	Images       []v1.ContainerImage
	VolumesInUse []v1.UniqueVolumeName
}

// maxNames is upstream's limit of names per image, because an image may have any number of tags.
const maxNames = 5

// Status returns the Node's desired status. It is pure. It keeps what others wrote (unknown resources and conditions, attached volumes,
// ...). A condition's transition time changes only with its status.
func Status(in Inputs) v1.NodeStatus {
	s := *in.Known.DeepCopy()
	s.Capacity = capacity(in)
	s.Allocatable = allocatable(in, s.Capacity)
	s.Addresses = addresses(in)
	s.DaemonEndpoints.KubeletEndpoint.Port = in.Config.Port
	s.NodeInfo = nodeInfo(in)
	if in.Images != nil {
		s.Images = images(in.Images, *in.Config.MaxImages)
	}
	if in.VolumesInUse != nil {
		s.VolumesInUse = slices.Sorted(slices.Values(in.VolumesInUse))
	}
	s.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: new(in.Facts.OS == "linux")}
	s.DeclaredFeatures = declaredFeatures(in.Facts.OS)
	if in.EngineErr == nil { // otherwise the last known handlers stay
		s.RuntimeHandlers = handlers(in.Engine)
	}
	for _, c := range conditions(in, s.Capacity) {
		s.Conditions = set(s.Conditions, c)
	}
	return s
}

// addresses are the host's own, but a cloud's controller manager takes precedence. Until it has set any, the Node has the addresses that
// its administrator chose.
func addresses(in Inputs) []v1.NodeAddress {
	own := in.Addresses
	if in.Config.ExternalCloud && len(in.Known.Addresses) > 0 {
		return in.Known.Addresses
	}
	if in.Config.ExternalCloud && in.Config.NodeIP == "" {
		own = nil
	}
	var out []v1.NodeAddress
	for _, a := range own {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: in.Config.Hostname})
}

func nodeInfo(in Inputs) v1.NodeSystemInfo {
	info := v1.NodeSystemInfo{
		MachineID:       in.Facts.MachineID,
		SystemUUID:      in.Facts.SystemUUID,
		BootID:          in.Facts.BootID,
		KernelVersion:   in.Facts.KernelVersion,
		OSImage:         in.Facts.OSImage,
		KubeletVersion:  daemon.Kubernetes,
		OperatingSystem: in.Facts.OS,
		Architecture:    in.Facts.Arch,
		// An engine that does not answer keeps its version.
		ContainerRuntimeVersion: in.Known.NodeInfo.ContainerRuntimeVersion,
	}
	if in.EngineErr == nil {
		info.ContainerRuntimeVersion = "docker://" + in.Engine.Version
	} else if info.ContainerRuntimeVersion == "" {
		info.ContainerRuntimeVersion = "docker://Unknown"
	}
	if in.Facts.Swap > 0 {
		swap := int64(in.Facts.Swap)
		info.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	return info
}

// images are the largest ones: the scheduler prefers nodes that already have them.
func images(list []v1.ContainerImage, limit int) []v1.ContainerImage {
	list = slices.Clone(list)
	name := func(i v1.ContainerImage) string { return strings.Join(i.Names, " ") }
	slices.SortFunc(list, func(a, b v1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(name(a), name(b)))
	})
	if limit >= 0 && len(list) > limit {
		list = list[:limit]
	}
	for i := range list {
		if len(list[i].Names) > maxNames {
			list[i].Names = list[i].Names[:maxNames]
		}
	}
	return list
}

// pressures has the wording of the three pressure conditions, which kubectl, alerts and tests expect.
var pressures = []struct {
	kind              v1.NodeConditionType
	of                func(Pressure) bool
	bad, badMessage   string
	good, goodMessage string
}{
	{v1.NodeMemoryPressure, func(p Pressure) bool { return p.Memory }, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
	{v1.NodeDiskPressure, func(p Pressure) bool { return p.Disk }, "KubeletHasDiskPressure", "kubelet has disk pressure",
		"KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
	{v1.NodePIDPressure, func(p Pressure) bool { return p.PID }, "KubeletHasInsufficientPID", "kubelet has insufficient PID available",
		"KubeletHasSufficientPID", "kubelet has sufficient PID available"},
}

// conditions are the conditions that we own, Ready last.
func conditions(in Inputs, capacity v1.ResourceList) []v1.NodeCondition {
	now := metav1.NewTime(in.Now)
	var out []v1.NodeCondition
	for _, p := range pressures {
		c := v1.NodeCondition{Type: p.kind, Status: v1.ConditionFalse, Reason: p.good, Message: p.goodMessage}
		if p.of(in.Pressure) {
			c.Status, c.Reason, c.Message = v1.ConditionTrue, p.bad, p.badMessage
		}
		out = append(out, c)
	}
	if in.NetworkUnavailable != nil {
		out = append(out, *in.NetworkUnavailable)
	}
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	if why := notReady(in, capacity); len(why) > 0 {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "KubeletNotReady", why[0]
		if len(why) > 1 {
			ready.Message = "[" + strings.Join(why, ", ") + "]"
		}
	}
	out = append(out, ready)
	for i := range out {
		out[i].LastHeartbeatTime, out[i].LastTransitionTime = now, now
		if before := find(in.Known.Conditions, out[i].Type); before != nil && before.Status == out[i].Status {
			out[i].LastTransitionTime = before.LastTransitionTime
		}
	}
	return out
}

// notReady lists why pods cannot run here, in upstream's words.
func notReady(in Inputs, capacity v1.ResourceList) []string {
	var why []string
	if in.ShuttingDown {
		why = append(why, "node is shutting down")
	}
	if in.EngineErr != nil {
		why = append(why, "container runtime is down: "+oneLine(in.EngineErr))
	}
	if in.NetworkErr != nil {
		why = append(why, "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:"+oneLine(in.NetworkErr))
	}
	var missing []string
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		if _, ok := capacity[name]; !ok {
			missing = append(missing, string(name))
		}
	}
	if len(missing) > 0 {
		why = append(why, "missing node capacity for resources: "+strings.Join(missing, ", "))
	}
	return why
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func find(conditions []v1.NodeCondition, kind v1.NodeConditionType) *v1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// set replaces the condition of c's type in place, or appends it.
func set(conditions []v1.NodeCondition, c v1.NodeCondition) []v1.NodeCondition {
	if old := find(conditions, c.Type); old != nil {
		*old = c
		return conditions
	}
	return append(conditions, c)
}

// same compares two statuses, ignoring heartbeat times.
func same(a, b v1.NodeStatus) bool {
	return equality.Semantic.DeepEqual(withoutHeartbeats(a), withoutHeartbeats(b))
}

func withoutHeartbeats(s v1.NodeStatus) v1.NodeStatus {
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		s.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	return s
}

// transition is an Event about the node for a change of status.
type transition struct{ kind, reason, message string }

// transitions returns the Events that upstream's kubelet sends for a change.
func transitions(name string, before, after v1.NodeStatus) []transition {
	var out []transition
	now := func(reason string) {
		out = append(out, transition{v1.EventTypeNormal, reason, "Node " + name + " status is now: " + reason})
	}
	for _, p := range pressures {
		old, c := find(before.Conditions, p.kind), find(after.Conditions, p.kind)
		if c != nil && (old == nil || old.Status != c.Status) {
			now("Node" + strings.TrimPrefix(c.Reason, "Kubelet"))
		}
	}
	old, c := find(before.Conditions, v1.NodeReady), find(after.Conditions, v1.NodeReady)
	switch {
	case old == nil || c == nil || old.Status == c.Status:
	case c.Status == v1.ConditionTrue:
		now("NodeReady")
	default:
		now("NodeNotReady")
	}
	if was, is := before.NodeInfo.BootID, after.NodeInfo.BootID; was != "" && was != is {
		out = append(out, transition{v1.EventTypeWarning, "Rebooted", "Node " + name + " has been rebooted, boot id: " + is})
	}
	return out
}
