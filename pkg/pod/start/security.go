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

// The scores of upstream's QoS policy: guaranteed pods are killed last, best-effort pods first.
const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// What upstream names a pod that a node cannot do without.
const systemNodeCritical = "system-node-critical"

// windowsRoots are the accounts that runAsNonRoot forbids on Windows: upstream's one, and what else means the same or more. Their SIDs are
// well known (Microsoft, "Well-known SIDs"; those of containers' accounts begin with S-1-5-93-2).
var windowsRoots = []string{"ContainerAdministrator", `User Manager\ContainerAdministrator`, "S-1-5-93-2-1", "SYSTEM", `NT AUTHORITY\SYSTEM`, "S-1-5-18"}

// isWindowsRoot knows names and SIDs in any case.
func isWindowsRoot(user string) bool {
	return slices.ContainsFunc(windowsRoots, func(root string) bool { return strings.EqualFold(user, root) })
}

// refusePod says why pod cannot run on platform at all, for fields that the engine cannot honour; "" if it can.
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

// refuseContainer is refusePod for the fields of one container.
func refuseContainer(pod *v1.Pod, container *v1.Container, platform pod.Platform) string {
	if len(container.VolumeDevices) > 0 && platform.OS == "windows" {
		return fmt.Sprintf("volumeDevices (%s) are not possible here: Windows containers have no block devices; use volumeMounts", container.VolumeDevices[0].Name)
	}
	if w := podspec.WindowsOptions(pod, container); w.HostProcess != nil && *w.HostProcess {
		return "windowsOptions.hostProcess: true is not possible here: Docker has no HostProcess containers; run the program as a service of the host"
	} else if platform.OS == "windows" {
		return refuseCredentialSpec(w)
	}
	return ""
}

// refuseCredentialSpec says why a credential spec of a group Managed Service Account cannot be given to the engine, which would fail in
// its own words when the container starts.
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

// checkNonRoot enforces runAsNonRoot: what would run as root, or as a user that cannot be told from root, does not start. The messages are
// those that users look up.
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

// parseImageUser splits an image's USER, "user[:group]". An empty one is root; name is set where the user is no number.
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

// oomScoreAdj is what a container's processes get in /proc/PID/oom_score_adj. A burstable container is the safer the larger its share
// of the node's memory that it requests; sidecars count at least as much as the smallest of the containers that they serve.
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

// spareRequest is each container's part of what the pod as a whole requests of memory beyond its containers (KEP-2837).
func spareRequest(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	sum := resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{})
	n := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
	return max(0, pod.Spec.Resources.Requests.Memory().Value()-sum.Memory().Value()) / max(n, 1)
}

// checkAppArmor says when the profile that a container names is not loaded: the engine would say so in words of the kernel.
func checkAppArmor(pod *v1.Pod, container *v1.Container, loaded func(string) bool) error {
	profile := podspec.AppArmorProfile(pod, container)
	if loaded == nil || profile == nil || profile.Type != v1.AppArmorProfileTypeLocalhost || profile.LocalhostProfile == nil || loaded(*profile.LocalhostProfile) {
		return nil
	}
	return fmt.Errorf("AppArmor profile %q is not loaded on this host: load it with apparmor_parser", *profile.LocalhostProfile)
}
