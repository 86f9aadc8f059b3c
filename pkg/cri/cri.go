// Package cri implements the few calls of the Container Runtime Interface that kubeadm makes on a node (`kubelet cri`).
//
//	kubeadm --gRPC on cri-dockerd's well-known socket or pipe--> Server --> Engine (docker)
//
// kubeadm join calls Version, Status and RuntimeConfig before it lets a host join, kubeadm config images and kubeadm upgrade pull images, and kubeadm
// reset, after it has stopped the kubelet, lists, stops and removes pods. That is why this is a separate service. A pod's identifier here is its UID:
// not every pod has a sandbox. All other CRI calls are Unimplemented; no kubelet can run on it.
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// Engine is the part of the container engine that the Server needs.
type Engine interface {
	Info(ctx context.Context) (docker.Info, error)
	// ImageRoot is a directory of the file system on which the engine keeps images.
	ImageRoot(ctx context.Context) (string, error)
	Lookup(ctx context.Context, name string) (pod.Image, bool, error)
	ListImages(ctx context.Context) (list docker.ImageList, changed bool, err error)
	Pull(ctx context.Context, name string, creds []pod.Credential) (img pod.Image, used int, err error)
	ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error)
	Observe(ctx context.Context, uid types.UID) (pod.Observed, error)
	Apply(ctx context.Context, p *v1.Pod, step pod.Step) error
}

const (
	apiVersion  = "v1"
	runtimeName = "docker"
	// stopGrace is a pod's grace period on StopPodSandbox: kubeadm waits for 2 s and asks five times.
	stopGrace = time.Second
	// stopPatience limits the work that a call starts, which continues when the caller has given up.
	stopPatience = time.Minute
	maxMessage   = 16 << 20 // bytes, as containerd's CRI
	maxStreams   = 100
	greeting     = 10 * time.Second // time limit for a connection to start HTTP/2
)

// Server answers CRI calls. Its only state is the work in progress.
type Server struct {
	runtime.UnimplementedRuntimeServiceServer
	images
	engine Engine

	mu   sync.Mutex
	jobs map[string]*job
}

// job is work that several callers may wait for.
type job struct {
	done chan struct{}
	err  error
}

type images struct {
	runtime.UnimplementedImageServiceServer
	engine       Engine
	sandboxImage string
}

// New returns a Server. sandboxImage is the kubelet's --pod-infra-container-image.
func New(engine Engine, sandboxImage string) *Server {
	return &Server{engine: engine, images: images{engine: engine, sandboxImage: sandboxImage}, jobs: map[string]*job{}}
}

// Serve serves on listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(greeting))
	runtime.RegisterRuntimeServiceServer(server, s)
	runtime.RegisterImageServiceServer(server, &s.images)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
		return fmt.Errorf("cannot serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Version returns the engine's name and versions.
func (s *Server) Version(ctx context.Context, _ *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	info, err := s.engine.Info(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &runtime.VersionResponse{Version: "0.1.0", RuntimeName: runtimeName, RuntimeVersion: info.Version, RuntimeApiVersion: apiVersion}, nil
}

// Status says whether the engine answers. It reports the network as ready, because the kubelet creates it only after the node has joined.
func (s *Server) Status(ctx context.Context, request *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	ready := &runtime.RuntimeCondition{Type: runtime.RuntimeReady, Status: true}
	info, err := s.engine.Info(ctx)
	if err != nil {
		ready.Status, ready.Reason, ready.Message = false, "EngineNotReady", err.Error()
	}
	answer := &runtime.StatusResponse{Status: &runtime.RuntimeStatus{Conditions: []*runtime.RuntimeCondition{ready, {Type: runtime.NetworkReady, Status: true}}}}
	for _, name := range info.Runtimes {
		answer.RuntimeHandlers = append(answer.RuntimeHandlers, &runtime.RuntimeHandler{Name: name})
	}
	if request.GetVerbose() {
		config, err := json.Marshal(map[string]string{"sandboxImage": s.sandboxImage})
		if err != nil {
			return nil, err
		}
		answer.Info = map[string]string{"config": string(config)}
	}
	return answer, nil
}

// RuntimeConfig returns the engine's cgroup driver (KEP-4033).
func (s *Server) RuntimeConfig(ctx context.Context, _ *runtime.RuntimeConfigRequest) (*runtime.RuntimeConfigResponse, error) {
	info, err := s.engine.Info(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if info.OS == "windows" {
		return &runtime.RuntimeConfigResponse{}, nil
	}
	driver := runtime.CgroupDriver_CGROUPFS
	if info.CgroupDriver == "systemd" {
		driver = runtime.CgroupDriver_SYSTEMD
	}
	return &runtime.RuntimeConfigResponse{Linux: &runtime.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// ListPodSandbox lists the pods that have containers on the engine.
func (s *Server) ListPodSandbox(ctx context.Context, request *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	all, err := s.engine.ObserveAll(ctx)
	if err != nil {
		return nil, err
	}
	answer := &runtime.ListPodSandboxResponse{}
	filter := request.GetFilter()
	for uid, o := range all {
		state := runtime.PodSandboxState_SANDBOX_NOTREADY
		if runs(o) {
			state = runtime.PodSandboxState_SANDBOX_READY
		}
		if filter.GetId() != "" && filter.GetId() != string(uid) || filter.GetState() != nil && filter.GetState().State != state {
			continue
		}
		answer.Items = append(answer.Items, &runtime.PodSandbox{Id: string(uid), State: state,
			Metadata: &runtime.PodSandboxMetadata{Name: o.Name, Namespace: o.Namespace, Uid: string(uid)}})
	}
	slices.SortFunc(answer.Items, func(a, b *runtime.PodSandbox) int { return strings.Compare(a.Id, b.Id) })
	return answer, nil
}

func runs(o pod.Observed) bool {
	return slices.ContainsFunc(o.Containers, func(c pod.Container) bool { return c.State == pod.Running }) ||
		slices.ContainsFunc(o.Sandboxes, func(s pod.Sandbox) bool { return s.Running })
}

// StopPodSandbox stops a pod's containers. The work continues when the caller has given up, and the next call waits for the same work.
func (s *Server) StopPodSandbox(ctx context.Context, request *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	uid := types.UID(request.GetPodSandboxId())
	return &runtime.StopPodSandboxResponse{}, s.once(ctx, "stop "+string(uid), func(ctx context.Context) error { return s.end(ctx, uid, false) })
}

// RemovePodSandbox stops and removes a pod's containers and the links to their logs.
func (s *Server) RemovePodSandbox(ctx context.Context, request *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error) {
	uid := types.UID(request.GetPodSandboxId())
	return &runtime.RemovePodSandboxResponse{}, s.once(ctx, "remove "+string(uid), func(ctx context.Context) error { return s.end(ctx, uid, true) })
}

// once starts work under a name, unless it is already running, and waits for its end or the caller's.
func (s *Server) once(ctx context.Context, name string, work func(context.Context) error) error {
	s.mu.Lock()
	j := s.jobs[name]
	if j == nil {
		j = &job{done: make(chan struct{})}
		s.jobs[name] = j
		go func() { // it outlives its caller, and ends within stopPatience
			inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
			defer cancel()
			j.err = work(inner)
			s.mu.Lock()
			delete(s.jobs, name)
			s.mu.Unlock()
			close(j.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end stops all containers of a pod, before the sandbox whose network they use; with remove it also removes them.
func (s *Server) end(ctx context.Context, uid types.UID, remove bool) error {
	o, err := s.engine.Observe(ctx, uid)
	if err != nil {
		return err
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: uid}}
	apply := func(action pod.Action, id string) error {
		return s.engine.Apply(ctx, p, pod.Step{Action: action, ID: id, Grace: stopGrace, Reason: "asked for by CRI"})
	}
	var group sync.WaitGroup
	errs := make([]error, len(o.Containers))
	for i, c := range o.Containers {
		group.Go(func() {
			if c.State == pod.Running {
				errs[i] = apply(pod.StopContainer, c.ID)
			}
			if errs[i] == nil && remove {
				errs[i] = apply(pod.RemoveContainer, c.ID)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, sandbox := range o.Sandboxes {
		if sandbox.Running {
			errs = append(errs, apply(pod.StopSandbox, sandbox.ID))
		}
		if remove {
			errs = append(errs, apply(pod.RemoveSandbox, sandbox.ID))
		}
	}
	if err := errors.Join(errs...); err != nil || !remove {
		return err
	}
	klog.InfoS("Removed a pod", "pod", klog.KRef(o.Namespace, o.Name), "uid", uid)
	return nil
}

// ImageFsInfo describes the file system of the images: clients use it to detect an image service.
func (i *images) ImageFsInfo(ctx context.Context, _ *runtime.ImageFsInfoRequest) (*runtime.ImageFsInfoResponse, error) {
	root, err := i.engine.ImageRoot(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	fs := &runtime.FilesystemUsage{Timestamp: time.Now().UnixNano(), FsId: &runtime.FilesystemIdentifier{Mountpoint: root}}
	if disk, err := host.DiskUsage(root); err == nil { // a remote engine's disk is not accessible
		fs.UsedBytes = &runtime.UInt64Value{Value: disk.Capacity - disk.Available}
	}
	return &runtime.ImageFsInfoResponse{ImageFilesystems: []*runtime.FilesystemUsage{fs}, ContainerFilesystems: []*runtime.FilesystemUsage{fs}}, nil
}

// ListImages lists the present images.
func (i *images) ListImages(ctx context.Context, request *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	list, _, err := i.engine.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	answer := &runtime.ListImagesResponse{}
	wanted := request.GetFilter().GetImage().GetImage()
	for _, img := range list.Named {
		if wanted != "" && !slices.Contains(img.Names, wanted) {
			continue
		}
		out := &runtime.Image{Id: img.Names[0], Size: uint64(max(img.SizeBytes, 0))}
		for _, name := range img.Names {
			if strings.Contains(name, "@") {
				out.RepoDigests = append(out.RepoDigests, name)
			} else {
				out.RepoTags = append(out.RepoTags, name)
			}
		}
		answer.Images = append(answer.Images, out)
	}
	return answer, nil
}

// ImageStatus describes one image; the image is nil if it is not present.
func (i *images) ImageStatus(ctx context.Context, request *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	name := request.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "image.image is empty; want an image's name")
	}
	img, found, err := i.engine.Lookup(ctx, name)
	if err != nil || !found {
		return &runtime.ImageStatusResponse{}, err
	}
	return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: img.ID, RepoTags: []string{name}}}, nil
}

// PullImage fetches an image.
func (i *images) PullImage(ctx context.Context, request *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	name := request.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "image.image is empty; want an image's name")
	}
	var creds []pod.Credential
	if auth := request.GetAuth(); auth.GetUsername() != "" || auth.GetIdentityToken() != "" {
		creds = []pod.Credential{{Username: auth.GetUsername(), Password: auth.GetPassword(), IdentityToken: auth.GetIdentityToken()}}
	}
	img, _, err := i.engine.Pull(ctx, name, creds)
	if err != nil {
		return nil, err
	}
	return &runtime.PullImageResponse{ImageRef: img.ID}, nil
}
