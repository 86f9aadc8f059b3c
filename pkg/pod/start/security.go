package start

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Scores of upstream's QoS policy: the kernel kills guaranteed pods last and best-effort pods first.
const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// Upstream's priority class for pods that a node cannot do without.
const systemNodeCritical = "system-node-critical"

// windowsRoots are the accounts that runAsNonRoot forbids on Windows: upstream's, and those with equal or greater rights. The SIDs are well
// known (Microsoft, "Well-known SIDs"; those of container accounts start with S-1-5-93-2).
var windowsRoots = []string{"ContainerAdministrator", `User Manager\ContainerAdministrator`, "S-1-5-93-2-1", "SYSTEM", `NT AUTHORITY\SYSTEM`, "S-1-5-18"}

// isWindowsRoot compares names and SIDs without case.
func isWindowsRoot(user string) bool {
	return slices.ContainsFunc(windowsRoots, func(root string) bool { return strings.EqualFold(user, root) })
}

// refusePod says why pod cannot run on platform at all, because of fields that the engine cannot implement; "" if it can run.
func refusePod(pod *v1.Pod, platform pod.Platform) string {
	spec := &pod.Spec
	windows := platform.OS == "windows"
	switch {
	case spec.HostUsers != nil && !*spec.HostUsers:
		return "spec.hostUsers: false is not possible here: Docker cannot give a pod its own user namespace; remove the field (userns-remap in the engine's daemon.json gives all pods one)"
	case len(spec.ResourceClaims) > 0:
		return "spec.resourceClaims is not supported by this node agent; use another node (dynamic resource allocation needs a CRI runtime)"
	case windows && spec.HostNetwork:
		return "spec.hostNetwork: true is not possible here: Windows containers cannot use the host's network; remove the field and publish hostPorts or a Service instead"
	}
	if !platform.SharedNetwork {
		if n := podspec.ConcurrentContainers(spec); n > 1 {
			return fmt.Sprintf("the pod has %d containers that run at the same time, but on this host (%s build %d) containers cannot share a network, so a pod can have only one; "+
				"split the pod, or use a node with Windows Server version 1709 or later", n, platform.OS, platform.Build)
		}
	}
	return ""
}

// refuseContainer is like refusePod, for the fields of one container.
func refuseContainer(pod *v1.Pod, container *v1.Container, platform pod.Platform) string {
	if len(container.VolumeDevices) > 0 && platform.OS == "windows" {
		return fmt.Sprintf("volumeDevices (%s) are not possible here: Windows containers have no block devices; use volumeMounts", container.VolumeDevices[0].Name)
	}
	if platform.OS != "windows" { // Linux ignores the options: manifests for both systems have them
		return ""
	}
	w := podspec.WindowsOptions(pod, container)
	if podspec.IsTrue(w.HostProcess) {
		return "windowsOptions.hostProcess: true is not possible here: Docker has no HostProcess containers; run the program as a service of the host"
	}
	return refuseCredentialSpec(w)
}

// refuseCredentialSpec says why the engine could not use the credential spec of a group Managed Service Account. The engine's own error
// would come only when the container starts, and be less clear.
func refuseCredentialSpec(w v1.WindowsSecurityContextOptions) string {
	switch text := deref(w.GMSACredentialSpec); {
	case text == "" && deref(w.GMSACredentialSpecName) != "":
		return fmt.Sprintf("windowsOptions.gmsaCredentialSpecName is %q and gmsaCredentialSpec is empty: the cluster's admission webhook for GMSA, which fills it in, is not installed", *w.GMSACredentialSpecName)
	case text != "":
		var spec map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			return fmt.Sprintf("windowsOptions.gmsaCredentialSpec is not a JSON object as New-CredentialSpec writes it: %v", err)
		}
	}
	return ""
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkNonRoot enforces runAsNonRoot: a container that would run as root, or as a user that may be root, does not start. Users look up
// these messages, which are upstream's.
func checkNonRoot(pod *v1.Pod, container *v1.Container, imageUser, os string) error {
	var nonRoot *bool
	var uid *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		nonRoot, uid = sc.RunAsNonRoot, sc.RunAsUser
	}
	if sc := container.SecurityContext; sc != nil {
		if sc.RunAsNonRoot != nil {
			nonRoot = sc.RunAsNonRoot
		}
		if sc.RunAsUser != nil {
			uid = sc.RunAsUser
		}
	}
	if !podspec.IsTrue(nonRoot) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", podspec.Label(pod), container.Name)
	if os == "windows" {
		return checkNonRootWindows(podspec.WindowsOptions(pod, container), imageUser, where)
	}
	if uid != nil {
		if *uid == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		return nil
	}
	id, name := parseImageUser(imageUser)
	switch {
	case name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", name, where)
	case id == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case id < 0 || id > math.MaxInt32:
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-%d) %s", id, math.MaxInt32, where)
	}
	return nil
}

func checkNonRootWindows(options v1.WindowsSecurityContextOptions, imageUser, where string) error {
	if options.RunAsUserName != nil {
		if isWindowsRoot(*options.RunAsUserName) {
			return fmt.Errorf("container's runAsUserName (%s) which will be regarded as root identity and will break non-root policy %s", *options.RunAsUserName, where)
		}
		return nil
	}
	if isWindowsRoot(imageUser) {
		return fmt.Errorf("container's runAsUser (%s) which will be regarded as root identity and will break non-root policy %s", imageUser, where)
	}
	return nil
}

// parseImageUser splits an image's USER, "user[:group]". An empty one is root; name is set if the user is not a number.
func parseImageUser(user string) (uid int64, name string) {
	user, _, _ = strings.Cut(user, ":")
	if user == "" {
		return 0, ""
	}
	uid, err := strconv.ParseInt(user, 10, 64)
	if err != nil {
		return 0, user
	}
	return uid, ""
}

// oomScoreAdj is the value for /proc/PID/oom_score_adj of a container's processes. The more of the node's memory a burstable container
// requests, the later the kernel kills it. A sidecar counts with at least the smallest request among the app containers.
func oomScoreAdj(pod *v1.Pod, container *v1.Container, memory int64) int {
	critical := podspec.Critical(pod)
	if critical && pod.Spec.PriorityClassName == systemNodeCritical {
		return oomGuaranteed
	}
	switch podspec.QOSOf(pod) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	if memory <= 0 {
		return oomBestEffort - 1
	}
	request := container.Resources.Requests.Memory().Value()
	if podspec.IsSidecar(container) {
		least := int64(math.MaxInt64)
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		if len(pod.Spec.Containers) > 0 {
			request = max(request, least)
		}
	}
	request += spareRequest(pod)
	score := oomBestEffort - int(math.Floor(float64(request)*1000/float64(memory)))
	return min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
}

// spareRequest is each container's share of the pod-level memory request that exceeds the containers' requests (KEP-2837).
func spareRequest(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	sum := resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{})
	n := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
	return max(0, pod.Spec.Resources.Requests.Memory().Value()-sum.Memory().Value()) / max(n, 1)
}

// checkAppArmor reports a profile that is not loaded. The engine's own error would be the kernel's.
func checkAppArmor(pod *v1.Pod, container *v1.Container, loaded func(string) bool) error {
	profile := podspec.AppArmorProfile(pod, container)
	if loaded == nil || profile == nil || profile.Type != v1.AppArmorProfileTypeLocalhost || profile.LocalhostProfile == nil || loaded(*profile.LocalhostProfile) {
		return nil
	}
	return fmt.Errorf("AppArmor profile %q is not loaded on this host: load it with apparmor_parser", *profile.LocalhostProfile)
}
