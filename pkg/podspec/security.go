package podspec

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// WindowsOptions merges the pod's and the container's options; the container's take precedence, field by field.
func WindowsOptions(pod *v1.Pod, container *v1.Container) v1.WindowsSecurityContextOptions {
	var out v1.WindowsSecurityContextOptions
	merge := func(o *v1.WindowsSecurityContextOptions) {
		if o == nil {
			return
		}
		if o.RunAsUserName != nil {
			out.RunAsUserName = o.RunAsUserName
		}
		if o.HostProcess != nil {
			out.HostProcess = o.HostProcess
		}
		if o.GMSACredentialSpec != nil {
			out.GMSACredentialSpec = o.GMSACredentialSpec
		}
		if o.GMSACredentialSpecName != nil {
			out.GMSACredentialSpecName = o.GMSACredentialSpecName
		}
	}
	if pod.Spec.SecurityContext != nil {
		merge(pod.Spec.SecurityContext.WindowsOptions)
	}
	if container.SecurityContext != nil {
		merge(container.SecurityContext.WindowsOptions)
	}
	return out
}

// AppArmorProfile is the profile that the spec selects for a container: its own, or that of the older annotation, or the pod's; nil if
// there is none.
func AppArmorProfile(pod *v1.Pod, container *v1.Container) *v1.AppArmorProfile {
	if sc := container.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		return sc.AppArmorProfile
	}
	switch value := pod.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+container.Name]; {
	case strings.HasPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix):
		name := strings.TrimPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix)
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	case value == v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	case value == v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.AppArmorProfile
	}
	return nil
}
