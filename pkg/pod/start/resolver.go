// Package start collects what a container, and before it the pod's sandbox, needs to start: environment, mounts, files, identity, image and
// credentials, host name, resolver configuration.
//
//	pod.Attempt -> Resolver (Images, Volumes, Network, Objects) -> pod.SandboxInputs, pod.Inputs -> pod.Runtime
//
// It does not decide when to start: the worker calls it just before a start and again after a failure. Errors for users are
// *pod.StartError.
package start

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Config is the node's settings for starting pods. Its functions are called at each start and must not block.
type Config struct {
	NodeName      string
	Platform      pod.Platform
	ClusterDNS    []netip.Addr // kubelet field clusterDNS
	ClusterDomain string       // kubelet field clusterDomain, e.g. cluster.local
	// Cluster provides the DNS servers and domain; nil: use ClusterDNS and ClusterDomain.
	Cluster Cluster
	// ResolvConf is the path of the resolver configuration that pods inherit (kubelet field resolvConf). "": none; on Windows the engine
	// then gives the host's servers to pods with dnsPolicy Default.
	ResolvConf       string
	HostIPs          func() []netip.Addr // this node's addresses, primary first
	SerializePulls   bool                // kubelet field serializeImagePulls
	MaxParallelPulls int                 // kubelet field maxParallelImagePulls; 0: no limit
	PullQPS          float32             // kubelet field registryPullQPS; 0: no limit
	PullBurst        int                 // kubelet field registryBurst
	// DockerConfigs are paths of Docker configs with the node's own logins, like config.json in the root directory of upstream's kubelet.
	// They are optional, and read at each pull.
	DockerConfigs []string
	// Capacity is the node's allocatable resources: resourceFieldRef shows them for an unset limit.
	Capacity func() v1.ResourceList
	// RecursiveReadOnly reports whether the engine supports recursive read-only mounts; nil: no.
	RecursiveReadOnly func() bool
	// HyperV reports whether containers run in virtual machines by default (Windows); nil: no.
	HyperV func() bool
	// AppArmorLoaded reports whether the host has loaded an AppArmor profile; nil: all are loaded.
	AppArmorLoaded func(profile string) bool
}

// Cluster provides the cluster's DNS. *learn.Cluster implements it.
type Cluster interface {
	// Wait waits until DNS is known or cannot be learned for now. The error is ctx's.
	Wait(ctx context.Context) error
	// DNS returns the DNS servers and domain for pods; no servers: the cluster has none.
	DNS() (servers []netip.Addr, domain string)
}

// PullerParts are the dependencies of a Puller. All are required except Plugins and Records.
type PullerParts struct {
	Images   pod.Images
	Plugins  pod.CredentialPlugins // nil: none
	Records  pod.PullRecords       // nil: every pod on this node may use any local image
	Objects  pod.Objects
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
}

// Puller provides images for containers and for image volumes. It is separate from the Resolver because volumes need it and the Resolver
// needs volumes.
type Puller struct {
	cfg   Config
	parts PullerParts
	pulls *puller
}

// NewPuller returns a Puller.
func NewPuller(cfg Config, parts PullerParts) *Puller {
	return &Puller{cfg: cfg, parts: parts, pulls: newPuller(cfg, parts.Images, parts.Clock)}
}

// parts are the dependencies of a Resolver.
type parts struct {
	PullerParts
	Volumes pod.Volumes
	Network pod.Network
}

// Resolver collects what a start needs, just before the start: image, environment, mounts, files, addresses, identity. Of a pod, it keeps
// only the back-off of its pulls. Its methods are safe for concurrent use. They block as long as its parts do, and return when ctx ends.
//
// Errors for users are *StartError, and their Events have already been sent. Any other error means that ctx ended.
type Resolver struct {
	*Puller
	cfg       Config
	parts     parts
	hostsPath string // the host's own hosts file, for hostNetwork
}

// New returns a Resolver that gets images from puller.
func New(cfg Config, puller *Puller, volumes pod.Volumes, network pod.Network) *Resolver {
	return &Resolver{cfg: cfg, Puller: puller, parts: parts{puller.parts, volumes, network}, hostsPath: "/etc/hosts"}
}

// fail sends the Event for err with the given reason. If reason is "", it sends upstream's "Failed" with only err's reason, because the
// message was already sent.
func (r *Puller) fail(ref *v1.ObjectReference, reason string, err *pod.StartError) error {
	if reason == "" {
		r.parts.Recorder.Event(ref, v1.EventTypeWarning, "Failed", "Error: "+err.Reason)
	} else {
		r.parts.Recorder.Event(ref, v1.EventTypeWarning, reason, err.Message)
	}
	return err
}

// Sandbox collects what creating the pod's sandbox needs. It also prepares the pod's volumes: without them the pod gets no network.
func (r *Resolver) Sandbox(ctx context.Context, p *v1.Pod) (*pod.SandboxInputs, error) {
	if refusal := refusePod(p, r.cfg.Platform); refusal != "" {
		return nil, r.fail(podspec.Reference(p), pod.ReasonSandbox, &pod.StartError{Reason: pod.ReasonSandbox, Message: refusal})
	}
	if _, err := r.prepare(ctx, p); err != nil {
		return nil, err
	}
	in, err := r.sandbox(ctx, p)
	if err != nil || r.cfg.Platform.OS == "windows" {
		return in, err
	}
	file, err := r.writeFile(p, "resolv.conf", "/etc/resolv.conf", resolvConf(in.DNS))
	if err != nil {
		return nil, r.fail(podspec.Reference(p), pod.ReasonSandbox, &pod.StartError{Reason: pod.ReasonSandbox, Message: err.Error(), Err: err})
	}
	in.Files = []pod.File{file}
	return in, nil
}

// prepare refuses pods that cannot run here, and prepares the pod's volumes.
func (r *Resolver) prepare(ctx context.Context, p *v1.Pod) (map[string]string, error) {
	if refusal := refusePod(p, r.cfg.Platform); refusal != "" {
		return nil, r.fail(podspec.Reference(p), "Failed", &pod.StartError{Reason: pod.ReasonConfig, Message: refusal})
	}
	paths, err := r.parts.Volumes.Prepare(ctx, p)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, r.fail(podspec.Reference(p), pod.ReasonMount, &pod.StartError{Reason: pod.ReasonMount, Message: err.Error(), Err: err})
	}
	return paths, nil
}

// sandbox decides runtime, network, host name and resolver configuration. It sends an Event if it had to shorten the latter, and
// if it ignores an annotation.
func (r *Resolver) sandbox(ctx context.Context, p *v1.Pod) (*pod.SandboxInputs, error) {
	in := &pod.SandboxInputs{Network: "host"}
	if err := r.cfg.await(ctx, p); err != nil {
		return nil, err
	}
	var err error
	if in.Runtime, err = r.Handler(ctx, p); err != nil {
		return nil, err
	}
	r.noteIsolation(p)
	if !p.Spec.HostNetwork {
		network, err := r.parts.Network.Join(p)
		if err != nil {
			return nil, r.fail(podspec.Reference(p), pod.ReasonNetwork, &pod.StartError{Reason: pod.ReasonNetwork, Message: fmt.Sprintf("network is not ready: %v", err), Err: err})
		}
		in.Network = network
		name, domain, err := podHostname(p, r.cfg.clusterDomain())
		if err == nil {
			in.Hostname, err = kernelHostname(p, name, domain)
		}
		if err != nil {
			return nil, r.fail(podspec.Reference(p), pod.ReasonSandbox, &pod.StartError{Reason: pod.ReasonSandbox, Message: "Failed to create pod sandbox: " + err.Error(), Err: err})
		}
	}
	dns, warnings, err := r.cfg.dns(p)
	if err != nil {
		return nil, r.fail(podspec.Reference(p), pod.ReasonSandbox, &pod.StartError{Reason: pod.ReasonSandbox, Message: "Failed to create pod sandbox: " + err.Error(), Err: err})
	}
	for _, w := range warnings {
		r.parts.Recorder.Event(podspec.Reference(p), v1.EventTypeWarning, w.reason, w.message)
	}
	in.DNS = dns
	return in, nil
}

// Container collects what starting one container needs: its image, volumes and files. container comes from the spec; for an ephemeral
// container the caller converts the common part.
func (r *Resolver) Container(ctx context.Context, p *v1.Pod, container *v1.Container, at pod.Attempt) (*pod.Inputs, error) {
	ref := podspec.ContainerReference(p, container.Name, at.Kind)
	config := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		start := &pod.StartError{Reason: pod.ReasonConfig, Message: err.Error(), Err: err}
		r.parts.Recorder.Event(ref, v1.EventTypeWarning, "Failed", "Error: "+start.Message)
		return start
	}
	if refusal := refuseContainer(p, container, r.cfg.Platform); refusal != "" {
		return nil, config(errors.New(refusal))
	}
	paths, err := r.prepare(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := checkAppArmor(p, container, r.cfg.AppArmorLoaded); err != nil {
		return nil, config(err)
	}
	in := &pod.Inputs{SandboxID: at.SandboxID, Runtime: at.Runtime}
	if in.TargetID, err = target(p, container, at); err != nil {
		return nil, config(err)
	}
	if at.SandboxID == "" {
		if in.Sandbox, err = r.sandbox(ctx, p); err != nil {
			return nil, err
		}
		in.Runtime = in.Sandbox.Runtime
	} else if err := r.shareNames(p, in); err != nil {
		return nil, config(err)
	}
	if in.Image, err = r.image(ctx, p, container, ref); err != nil {
		return nil, err
	}
	isolation, _ := podspec.Isolation(p, in.Runtime, r.cfg.Platform.HyperVContainer)
	if err := pod.CheckImageFits(container.Image, in.Image, r.cfg.Platform, isHyperV(isolation, r.cfg.HyperV)); err != nil {
		return nil, config(err)
	}
	if err := checkNonRoot(p, container, in.Image.User, r.cfg.Platform.OS); err != nil {
		return nil, config(err)
	}
	if in.Env, err = r.env(ctx, p, container, at, paths); err != nil {
		return nil, config(err)
	}
	if in.Mounts, err = r.parts.Volumes.Mounts(ctx, p, container, in.Env); err != nil {
		if image := new(pod.StartError); errors.As(err, &image) { // of an image volume, already reported
			return nil, image
		}
		return nil, config(err)
	}
	if err := recursiveReadOnly(container, in.Mounts, r.cfg.RecursiveReadOnly); err != nil {
		return nil, config(err)
	}
	if in.Devices, err = r.parts.Volumes.Devices(p, container); err != nil {
		return nil, config(err)
	}
	in.Entrypoint, in.Args = expandAll(container.Command, in.Env), expandAll(container.Args, in.Env)
	in.OOMScoreAdj = oomScoreAdj(p, container, r.memory())
	files := r.files
	if r.cfg.Platform.OS == "windows" {
		files = r.windowsFiles
	}
	if err := files(p, container, at, in); err != nil {
		return nil, config(err)
	}
	return in, nil
}

// memory is the node's memory in bytes; 0 if unknown.
func (r *Resolver) memory() int64 {
	if node := r.parts.Objects.Node(); node != nil && !node.Status.Capacity.Memory().IsZero() {
		return node.Status.Capacity.Memory().Value()
	}
	allocatable := r.cfg.Capacity()
	return allocatable.Memory().Value()
}

// env fetches the objects that the environment refers to, and builds the environment.
func (r *Resolver) env(ctx context.Context, pod *v1.Pod, container *v1.Container, at pod.Attempt, paths map[string]string) ([]pod.Env, error) {
	from := envSources{
		pod:         pod,
		addresses:   podspec.Addresses{Pod: at.Addresses, Host: r.cfg.HostIPs()},
		allocatable: r.cfg.Capacity(),
		configMaps:  map[string]*v1.ConfigMap{},
		secrets:     map[string]*v1.Secret{},
		file:        func(volume, path string) (string, bool, error) { return readVolumeFile(paths, volume, path) },
	}
	configMaps, secrets := envReferences(container)
	for _, name := range configMaps {
		object, err := r.parts.Objects.ConfigMap(ctx, pod.Namespace, name)
		if err == nil {
			from.configMaps[name] = object
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	for _, name := range secrets {
		object, err := r.parts.Objects.Secret(ctx, pod.Namespace, name)
		if err == nil {
			from.secrets[name] = object
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	services, err := r.services(pod)
	if err != nil {
		return nil, err
	}
	from.services = serviceEnv(services)
	env, skipped, err := buildEnv(container, from)
	if len(skipped) > 0 {
		r.parts.Recorder.Eventf(podspec.ContainerReference(pod, container.Name, at.Kind), v1.EventTypeWarning, "InvalidEnvironmentVariableNames",
			"Keys %q from envFrom were skipped: they are no names of environment variables", skipped)
	}
	return env, err
}

// services lists the services for the pod's environment. An API pod waits for the list. A static pod cannot wait, because it may be the API
// server.
func (r *Resolver) services(pod *v1.Pod) ([]*v1.Service, error) {
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	defaults, err := r.parts.Objects.Services(v1.NamespaceDefault)
	own := defaults
	if err == nil && links && pod.Namespace != v1.NamespaceDefault {
		own, err = r.parts.Objects.Services(pod.Namespace)
	}
	if err != nil && !podspec.IsStatic(pod) {
		return nil, fmt.Errorf("services have not yet been read at least once, cannot construct envvars: %w", err)
	}
	return linkedServices(own, defaults, links), nil
}
