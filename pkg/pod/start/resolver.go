// Package start gathers what one container needs before it starts, and its pod's sandbox before that: environment, mounts, files, identity,
// image and credentials, host name, resolver configuration.
//
//	pod.Attempt -> Resolver (Images, Volumes, Network, Objects) -> pod.SandboxInputs, pod.Inputs -> pod.Runtime
//
// It decides nothing about when: the worker asks just before a start, and again after a failure. What the user has to see comes back as
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

// Config is what the node says about starting pods. Functions are called at each start and must not block.
type Config struct {
	NodeName      string
	Platform      pod.Platform
	ClusterDNS    []netip.Addr // kubelet field clusterDNS
	ClusterDomain string       // kubelet field clusterDomain, e.g. cluster.local
	// ResolvConf is the path of the resolver configuration that pods inherit (kubelet field resolvConf). "": none; on Windows the
	// engine then hands the host's servers to pods with dnsPolicy Default.
	ResolvConf       string
	HostIPs          func() []netip.Addr // this node's addresses, primary first
	SerializePulls   bool                // kubelet field serializeImagePulls
	MaxParallelPulls int                 // kubelet field maxParallelImagePulls; 0: no limit
	PullQPS          float32             // kubelet field registryPullQPS; 0: no limit
	PullBurst        int                 // kubelet field registryBurst
	// DockerConfigs are paths of Docker configs with the node's own logins, as upstream's kubelet has config.json in its root
	// directory. They need not exist, and are read at each pull.
	DockerConfigs []string
	// Capacity is the node's allocatable: what resourceFieldRef shows for a limit that is not set.
	Capacity func() v1.ResourceList
	// RecursiveReadOnly says whether the engine can make read-only mounts recursively so; nil: it cannot.
	RecursiveReadOnly func() bool
	// HyperV says whether containers get virtual machines unless their pods say otherwise (Windows); nil: they do not.
	HyperV func() bool
	// AppArmorLoaded says whether the host has the AppArmor profile of that name; nil: it has all.
	AppArmorLoaded func(profile string) bool
}

// PullerParts are what a Puller asks. All are needed but Plugins and Records.
type PullerParts struct {
	Images   pod.Images
	Plugins  pod.CredentialPlugins // nil: none
	Records  pod.PullRecords       // nil: whoever may run here may use what is present
	Objects  pod.Objects
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
}

// Puller makes images present for containers and for image volumes. It is apart from the Resolver because volumes need it, and the Resolver
// needs volumes.
type Puller struct {
	cfg   Config
	parts PullerParts
	pulls *puller
}

// NewPuller makes a Puller.
func NewPuller(cfg Config, parts PullerParts) *Puller {
	return &Puller{cfg: cfg, parts: parts, pulls: newPuller(cfg, parts.Images, parts.Clock)}
}

// parts are what a Resolver asks.
type parts struct {
	PullerParts
	Volumes pod.Volumes
	Network pod.Network
}

// Resolver gathers what starting needs, just before a start: image, environment, mounts, files, addresses, identity. It keeps nothing
// of a pod but the back-off of its pulls. Its methods may be called concurrently; they block as long as its parts do and end with ctx.
//
// Errors that the user has to see are *StartError, and the events that go with them have been sent. Any other error means that ctx
// ended.
type Resolver struct {
	*Puller
	cfg       Config
	parts     parts
	hostsPath string // the host's own hosts file, for hostNetwork
}

// New makes a Resolver that has images from puller.
func New(cfg Config, puller *Puller, volumes pod.Volumes, network pod.Network) *Resolver {
	return &Resolver{cfg: cfg, Puller: puller, parts: parts{puller.parts, volumes, network}, hostsPath: "/etc/hosts"}
}

// fail sends what goes with err as an event: under reason, or when that is "" as upstream's "Failed" with the reason alone in it,
// because the message was sent already.
func (r *Puller) fail(ref *v1.ObjectReference, reason string, err *pod.StartError) error {
	if reason == "" {
		r.parts.Recorder.Event(ref, v1.EventTypeWarning, "Failed", "Error: "+err.Reason)
	} else {
		r.parts.Recorder.Event(ref, v1.EventTypeWarning, reason, err.Message)
	}
	return err
}

// Sandbox gathers what creating the pod's sandbox needs. It also prepares the pod's volumes: a pod whose volumes cannot be made gets
// no network.
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

// prepare refuses what cannot run here and makes the pod's volumes.
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

// sandbox decides runtime, network, host name and resolver configuration and sends an Event about what had to be cut from the last.
func (r *Resolver) sandbox(ctx context.Context, p *v1.Pod) (*pod.SandboxInputs, error) {
	in := &pod.SandboxInputs{Network: "host"}
	var err error
	if in.Runtime, err = r.Handler(ctx, p); err != nil {
		return nil, err
	}
	if !p.Spec.HostNetwork {
		network, err := r.parts.Network.Join(p)
		if err != nil {
			return nil, r.fail(podspec.Reference(p), pod.ReasonNetwork, &pod.StartError{Reason: pod.ReasonNetwork, Message: fmt.Sprintf("network is not ready: %v", err), Err: err})
		}
		in.Network = network
		name, domain, err := podHostname(p, r.cfg.ClusterDomain)
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

// Container gathers what starting one container needs: makes its image present, its volumes, its files. container is the one of the
// spec; an ephemeral container's common part is converted by the caller.
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
	}
	if in.Image, err = r.image(ctx, p, container, ref); err != nil {
		return nil, err
	}
	isolation, _ := podspec.Isolation(p, in.Runtime)
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
		if image := new(pod.StartError); errors.As(err, &image) { // of an image volume, and sent already
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

// memory is the node's, in bytes; 0 where it is not known.
func (r *Resolver) memory() int64 {
	if node := r.parts.Objects.Node(); node != nil && !node.Status.Capacity.Memory().IsZero() {
		return node.Status.Capacity.Memory().Value()
	}
	allocatable := r.cfg.Capacity()
	return allocatable.Memory().Value()
}

// env fetches what the environment refers to and builds it.
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

// services lists the services that the pod's environment names. A pod of the API server waits for the list; a static pod cannot, it
// may be the API server.
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
