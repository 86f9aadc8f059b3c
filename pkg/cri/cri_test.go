package cri

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/pod"
)

// fakeEngine has pods and images. It enforces an engine's rules: no running container is removed, no sandbox before its containers.
type fakeEngine struct {
	mu    sync.Mutex
	down  error
	pods  map[types.UID]pod.Observed
	log   []string
	block chan struct{} // stops wait for it
}

func (f *fakeEngine) Info(context.Context) (docker.Info, error) {
	return docker.Info{Version: "28.1.0", CgroupDriver: "systemd", Root: "/var/lib/docker", Runtimes: []string{"runc"}}, f.down
}

// ImageRoot is not the engine's root, as on an engine with containerd's store.
func (f *fakeEngine) ImageRoot(context.Context) (string, error) { return os.TempDir(), f.down }

func (f *fakeEngine) Lookup(_ context.Context, name string) (pod.Image, bool, error) {
	return pod.Image{ID: "sha256:1"}, name == "here:1", f.down
}

func (f *fakeEngine) ListImages(context.Context) (docker.ImageList, bool, error) {
	return docker.ImageList{Named: []v1.ContainerImage{{Names: []string{"here@sha256:1", "here:1"}, SizeBytes: 7}, {Names: []string{"other:1"}}}}, true, f.down
}

func (f *fakeEngine) Pull(_ context.Context, name string, creds []pod.Credential) (pod.Image, int, error) {
	if name != "public:1" && (len(creds) == 0 || creds[0].Password != "secret") {
		return pod.Image{}, -1, errors.New("denied")
	}
	return pod.Image{ID: "sha256:2"}, -1, nil
}

func (f *fakeEngine) ObserveAll(context.Context) (map[types.UID]pod.Observed, error) {
	return f.pods, f.down
}

func (f *fakeEngine) Observe(_ context.Context, uid types.UID) (pod.Observed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.pods[uid]
	o.Containers, o.Sandboxes = slices.Clone(o.Containers), slices.Clone(o.Sandboxes)
	return o, f.down
}

func (f *fakeEngine) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	if f.block != nil && step.Action == pod.StopContainer {
		select {
		case <-f.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, string(step.Action)+" "+step.ID)
	o := f.pods[p.UID]
	for i := range o.Containers {
		if c := &o.Containers[i]; c.ID == step.ID {
			switch {
			case step.Action == pod.StopContainer:
				c.State = pod.Exited
			case step.Action == pod.RemoveContainer && c.State == pod.Running:
				return errors.New("it runs")
			case step.Action == pod.RemoveContainer:
				o.Containers = slices.Delete(o.Containers, i, i+1)
			}
			f.pods[p.UID] = o
			return nil
		}
	}
	switch {
	case step.Action == pod.StopSandbox:
		o.Sandboxes[0].Running = false
	case step.Action == pod.RemoveSandbox && (o.Sandboxes[0].Running || len(o.Containers) > 0):
		return errors.New("it is in use")
	case step.Action == pod.RemoveSandbox:
		delete(f.pods, p.UID)
	}
	return nil
}

func newFake() *fakeEngine {
	return &fakeEngine{pods: map[types.UID]pod.Observed{
		"u1": {UID: "u1", Namespace: "default", Name: "web", Sandboxes: []pod.Sandbox{{ID: "s1", Running: true}},
			Containers: []pod.Container{{ID: "c1", State: pod.Running}, {ID: "c0", State: pod.Exited}}},
		"u2": {UID: "u2", Namespace: "default", Name: "alone", Containers: []pod.Container{{ID: "c2", State: pod.Exited}}},
	}}
}

func dial(t *testing.T, engine Engine) (runtime.RuntimeServiceClient, runtime.ImageServiceClient) {
	t.Helper()
	endpoint := testEndpoint(t)
	listener, err := Listen(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(engine, "pause:1").Serve(ctx, listener) }()
	conn, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, endpoint) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return runtime.NewRuntimeServiceClient(conn), runtime.NewImageServiceClient(conn)
}

func TestStatus(t *testing.T) {
	engine := newFake()
	client, _ := dial(t, engine)
	ctx := t.Context()
	version, err := client.Version(ctx, &runtime.VersionRequest{})
	if err != nil || version.RuntimeVersion != "28.1.0" || version.RuntimeApiVersion != "v1" {
		t.Errorf("%v, %v", version, err)
	}
	answer, err := client.Status(ctx, &runtime.StatusRequest{Verbose: true})
	if err != nil || !answer.Status.Conditions[0].Status || !answer.Status.Conditions[1].Status || answer.Info["config"] != `{"sandboxImage":"pause:1"}` {
		t.Errorf("%v, %v", answer, err)
	}
	config, err := client.RuntimeConfig(ctx, &runtime.RuntimeConfigRequest{})
	if err != nil || config.Linux.CgroupDriver != runtime.CgroupDriver_SYSTEMD {
		t.Errorf("%v, %v", config, err)
	}
	if _, err := client.RunPodSandbox(ctx, &runtime.RunPodSandboxRequest{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	engine.down = errors.New("no engine")
	answer, err = client.Status(ctx, &runtime.StatusRequest{})
	if c := answer.GetStatus().GetConditions(); err != nil || c[0].Status || c[0].Message != "no engine" {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := client.Version(ctx, &runtime.VersionRequest{}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

func TestImages(t *testing.T) {
	_, client := dial(t, newFake())
	ctx := t.Context()
	spec := func(name string) *runtime.ImageSpec { return &runtime.ImageSpec{Image: name} }
	list, err := client.ListImages(ctx, &runtime.ListImagesRequest{})
	if err != nil || len(list.Images) != 2 || list.Images[0].RepoTags[0] != "here:1" || list.Images[0].RepoDigests[0] != "here@sha256:1" || list.Images[0].Size != 7 {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := client.ListImages(ctx, &runtime.ListImagesRequest{Filter: &runtime.ImageFilter{Image: spec("other:1")}}); err != nil || len(list.Images) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if answer, err := client.ImageFsInfo(ctx, &runtime.ImageFsInfoRequest{}); err != nil || answer.ImageFilesystems[0].FsId.Mountpoint != os.TempDir() || answer.ImageFilesystems[0].UsedBytes.GetValue() == 0 {
		t.Errorf("%v, %v", answer, err)
	}
	for name, want := range map[string]string{"here:1": "sha256:1", "away:1": ""} {
		if answer, err := client.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: spec(name)}); err != nil || answer.GetImage().GetId() != want {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
	}
	if _, err := client.ImageStatus(ctx, &runtime.ImageStatusRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if answer, err := client.PullImage(ctx, &runtime.PullImageRequest{Image: spec("public:1")}); err != nil || answer.ImageRef != "sha256:2" {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := client.PullImage(ctx, &runtime.PullImageRequest{Image: spec("private:1")}); err == nil {
		t.Error("pulled a private image without a password")
	}
	if _, err := client.PullImage(ctx, &runtime.PullImageRequest{Image: spec("private:1"), Auth: &runtime.AuthConfig{Username: "me", Password: "secret"}}); err != nil {
		t.Error(err)
	}
}

// TestReset does what kubeadm reset does: list, then stop and remove each pod.
func TestReset(t *testing.T) {
	engine := newFake()
	client, _ := dial(t, engine)
	ctx := t.Context()
	list, err := client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil || len(list.Items) != 2 || list.Items[0].State != runtime.PodSandboxState_SANDBOX_READY || list.Items[1].State != runtime.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("%v, %v", list, err)
	}
	for _, item := range list.Items {
		if _, err := client.StopPodSandbox(ctx, &runtime.StopPodSandboxRequest{PodSandboxId: item.Id}); err != nil {
			t.Error(err)
		}
		if _, err := client.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: item.Id}); err != nil {
			t.Error(err)
		}
	}
	if len(engine.pods["u1"].Containers)+len(engine.pods["u1"].Sandboxes)+len(engine.pods["u2"].Containers) > 0 {
		t.Errorf("left: %+v", engine.pods)
	}
	if _, err := client.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: "u1"}); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// TestStopOutlivesCaller: kubeadm waits for 2 s and asks again; the work continues and is done once.
func TestStopOutlivesCaller(t *testing.T) {
	engine := newFake()
	engine.block = make(chan struct{})
	client, _ := dial(t, engine)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.StopPodSandbox(short, &runtime.StopPodSandboxRequest{PodSandboxId: "u1"}); status.Code(err) != codes.DeadlineExceeded {
		t.Fatal(err)
	}
	close(engine.block)
	if _, err := client.StopPodSandbox(t.Context(), &runtime.StopPodSandboxRequest{PodSandboxId: "u1"}); err != nil {
		t.Fatal(err)
	}
	engine.mu.Lock()
	defer engine.mu.Unlock()
	if n := strings.Count(strings.Join(engine.log, ","), "stop-container c1"); n != 1 {
		t.Errorf("stopped %d times: %q", n, engine.log)
	}
}

func TestEndpoints(t *testing.T) {
	for _, endpoint := range []string{"", "unix://", "tcp://127.0.0.1:1", "/var/run/x.sock"} {
		if l, err := Listen(endpoint); err == nil {
			_ = l.Close()
			t.Errorf("%q was taken", endpoint)
		}
	}
	if got := systemPath("npipe", "//./pipe/cri-dockerd"); got != `\\.\pipe\cri-dockerd` {
		t.Error(got)
	}
}
