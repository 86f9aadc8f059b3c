package source

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/winkube/winkube/pkg/podspec"
)

// makeStatic turns a manifest's pod into a static pod of this node: identity, defaults, checks. The same manifest at the same place on the
// same node gives the same pod for all versions of the agent: the UID is computed before defaults are set. A UID in the manifest is kept.
// The hash, otherwise equal to the UID, then differs between versions of the manifest.
func makeStatic(pod *v1.Pod, source, origin, node string, seen time.Time) error {
	if pod.Name == "" {
		return errors.New("metadata.name is empty; a static pod needs a name")
	}
	if err := checkReferences(pod); err != nil {
		return fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	pod.Status = v1.PodStatus{}
	data, err := json.Marshal(pod)
	if err != nil {
		return fmt.Errorf("cannot encode pod %s: %w", pod.Name, err)
	}
	h := fnv.New128a()
	h.Write(data) // never fails
	if source == "file" {
		fmt.Fprintf(h, "host:%sfile:%s", node, origin)
	} else {
		fmt.Fprintf(h, "url:%s", origin)
	}
	hash := hex.EncodeToString(h.Sum(nil))
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[podspec.AnnotationHash] = hash
	pod.Annotations[podspec.AnnotationSource] = source
	pod.Annotations[podspec.AnnotationSeen] = seen.UTC().Format(time.RFC3339Nano)
	if pod.CreationTimestamp.IsZero() {
		pod.CreationTimestamp = metav1.NewTime(seen).Rfc3339Copy()
	}
	if source == "file" {
		tolerate := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
		if !slices.Contains(pod.Spec.Tolerations, tolerate) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, tolerate)
		}
	}
	setDefaults(pod)
	pod.Status.Phase = v1.PodPending
	pod.Status.QOSClass = podspec.QOSOf(pod)
	if err := checkStatic(pod); err != nil {
		return fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	return nil
}

// setDefaults sets the defaults that the API server would set.
func setDefaults(pod *v1.Pod) {
	spec := &pod.Spec
	setDefault(&spec.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&spec.SchedulerName, v1.DefaultSchedulerName)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &v1.PodSecurityContext{}
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = new(int64(v1.DefaultTerminationGracePeriodSeconds))
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = new(v1.DefaultEnableServiceLinks)
	}
	for _, c := range podspec.Containers(pod) {
		setContainerDefaults(c, spec.HostNetwork)
	}
	for i := range spec.Volumes {
		setVolumeDefaults(&spec.Volumes[i])
	}
}

func setDefault[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func setContainerDefaults(c *v1.Container, hostNetwork bool) {
	setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	if c.ImagePullPolicy == "" {
		if name, err := podspec.ParseImage(c.Image); err == nil {
			c.ImagePullPolicy = podspec.PullPolicy(c, name)
		} else {
			c.ImagePullPolicy = v1.PullIfNotPresent
		}
	}
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork && c.Ports[i].HostPort == 0 {
			c.Ports[i].HostPort = c.Ports[i].ContainerPort
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			setDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, set := c.Resources.Requests[name]; !set {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for _, probe := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		setProbeDefaults(probe)
	}
	if c.Lifecycle != nil {
		for _, hook := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if hook != nil && hook.HTTPGet != nil {
				setHTTPDefaults(hook.HTTPGet)
			}
		}
	}
}

func setHTTPDefaults(get *v1.HTTPGetAction) {
	setDefault(&get.Path, "/")
	setDefault(&get.Scheme, v1.URISchemeHTTP)
}

func setProbeDefaults(p *v1.Probe) {
	if p == nil {
		return
	}
	for _, field := range []struct {
		value     *int32
		otherwise int32
	}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
		if *field.value == 0 {
			*field.value = field.otherwise
		}
	}
	if p.HTTPGet != nil {
		setHTTPDefaults(p.HTTPGet)
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new("")
	}
}

func setVolumeDefaults(v *v1.Volume) {
	if v.VolumeSource == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	if v.HostPath != nil && v.HostPath.Type == nil {
		v.HostPath.Type = new(v1.HostPathUnset)
	}
	if v.DownwardAPI != nil && v.DownwardAPI.DefaultMode == nil {
		v.DownwardAPI.DefaultMode = new(int32(v1.DownwardAPIVolumeSourceDefaultMode))
	}
	if v.Projected != nil && v.Projected.DefaultMode == nil {
		v.Projected.DefaultMode = new(int32(v1.ProjectedVolumeSourceDefaultMode))
	}
}

// checkReferences refuses references to API objects: a static pod may run without an API server, and must not get what only its node may
// read (upstream's gate PreventStaticPodAPIReferences).
func checkReferences(pod *v1.Pod) error {
	spec := &pod.Spec
	refuse := func(field, what string) error {
		return fmt.Errorf("%s: static pods cannot reference %s", field, what)
	}
	switch {
	case spec.ServiceAccountName != "":
		return refuse("spec.serviceAccountName", "serviceaccounts")
	case len(spec.ImagePullSecrets) > 0:
		return refuse("spec.imagePullSecrets", "secrets")
	case len(spec.ResourceClaims) > 0:
		return refuse("spec.resourceClaims", "resourceclaims")
	case len(spec.EphemeralContainers) > 0:
		return errors.New("spec.ephemeralContainers: static pods cannot have ephemeral containers")
	}
	for _, c := range podspec.Containers(pod) {
		for _, e := range c.Env {
			field := fmt.Sprintf("container %s: env %s", c.Name, e.Name)
			switch {
			case e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil:
				return refuse(field, "secrets")
			case e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil:
				return refuse(field, "configmaps")
			}
		}
		for _, e := range c.EnvFrom {
			switch {
			case e.SecretRef != nil:
				return refuse("container "+c.Name+": envFrom", "secrets")
			case e.ConfigMapRef != nil:
				return refuse("container "+c.Name+": envFrom", "configmaps")
			}
		}
	}
	for i := range spec.Volumes {
		if what := volumeReference(&spec.Volumes[i]); what != "" {
			return refuse("volume "+spec.Volumes[i].Name, what)
		}
	}
	return nil
}

func volumeReference(v *v1.Volume) string {
	switch {
	case v.Secret != nil:
		return "secrets"
	case v.ConfigMap != nil:
		return "configmaps"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistentvolumeclaims"
	case v.CSI != nil:
		return "csidrivers"
	case v.Glusterfs != nil:
		return "endpoints"
	case v.AzureFile != nil:
		return "secrets"
	case v.Projected == nil:
		return ""
	}
	for _, s := range v.Projected.Sources {
		switch {
		case s.Secret != nil:
			return "secrets"
		case s.ConfigMap != nil:
			return "configmaps"
		case s.ServiceAccountToken != nil:
			return "serviceaccounts"
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles"
		case s.PodCertificate != nil:
			return "podcertificates"
		}
	}
	return ""
}

// checkStatic finds what the API server would refuse and what would otherwise fail much later. Other errors appear when the pod starts or
// its mirror pod is created.
func checkStatic(pod *v1.Pod) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if msgs := validation.IsDNS1123Subdomain(pod.Name); len(msgs) > 0 {
		bad("metadata.name: %q: %s", pod.Name, strings.Join(msgs, "; "))
	}
	if msgs := validation.IsDNS1123Label(pod.Namespace); len(msgs) > 0 {
		bad("metadata.namespace: %q: %s", pod.Namespace, strings.Join(msgs, "; "))
	}
	if !podspec.ValidUID(pod.UID) {
		bad("metadata.uid: %q; want up to 128 letters, digits, '-', '_' and '.', the first and the last a letter or digit", pod.UID)
	}
	if policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}; !slices.Contains(policies, pod.Spec.RestartPolicy) {
		bad("spec.restartPolicy: %q; want one of %v", pod.Spec.RestartPolicy, policies)
	}
	if len(pod.Spec.Containers) == 0 {
		bad("spec.containers: none; want at least one")
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		if msgs := validation.IsDNS1123Label(v.Name); len(msgs) > 0 {
			bad("spec.volumes: name %q: %s", v.Name, strings.Join(msgs, "; "))
		}
		if volumes[v.Name] {
			bad("spec.volumes: %q is used twice", v.Name)
		}
		volumes[v.Name] = true
	}
	seen := map[string]bool{}
	for _, c := range podspec.Containers(pod) {
		if seen[c.Name] {
			bad("container %q is used twice; names must differ", c.Name)
		}
		seen[c.Name] = true
		errs = append(errs, checkContainer(c, volumes)...)
	}
	return errors.Join(errs...)
}

func checkContainer(c *v1.Container, volumes map[string]bool) []error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("container %q: "+format, append([]any{c.Name}, args...)...))
	}
	if msgs := validation.IsDNS1123Label(c.Name); len(msgs) > 0 {
		bad("name: %s", strings.Join(msgs, "; "))
	}
	if c.Image == "" {
		bad("image is empty")
	}
	for _, port := range c.Ports {
		if port.ContainerPort < 1 || port.ContainerPort > 65535 {
			bad("containerPort %d; want 1 to 65535", port.ContainerPort)
		}
		if port.HostPort < 0 || port.HostPort > 65535 {
			bad("hostPort %d; want 1 to 65535, or 0 for none", port.HostPort)
		}
	}
	for _, mount := range c.VolumeMounts {
		if !volumes[mount.Name] {
			bad("volumeMounts: the pod has no volume %q", mount.Name)
		}
		if mount.MountPath == "" {
			bad("volumeMounts: mountPath of %q is empty", mount.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
		request := c.Resources.Requests[name]
		if limit, ok := c.Resources.Limits[name]; ok && request.Cmp(limit) > 0 {
			bad("resources: the request of %s (%s) is above its limit (%s)", name, request.String(), limit.String())
		}
	}
	for _, p := range []struct {
		kind  string
		probe *v1.Probe
	}{{"startup", c.StartupProbe}, {"liveness", c.LivenessProbe}, {"readiness", c.ReadinessProbe}} {
		if p.probe == nil {
			continue
		}
		if p.probe.Exec == nil && p.probe.HTTPGet == nil && p.probe.TCPSocket == nil && p.probe.GRPC == nil {
			bad("%s probe: want one of exec, httpGet, tcpSocket, grpc", p.kind)
		}
		if p.kind != "readiness" && p.probe.SuccessThreshold != 1 {
			bad("%s probe: successThreshold %d; want 1", p.kind, p.probe.SuccessThreshold)
		}
	}
	return errs
}
