package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/docker/containers"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/exec"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/docker/images"
	"github.com/winkube/winkube/pkg/docker/logs"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/pkg/docker/usage"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// realHost names the real engine on which the suite also runs.
const realHost = "WINKUBE_TEST_DOCKER"

var (
	linux       = pod.Platform{OS: "linux", Arch: "amd64", SharedNetwork: true}
	windows2019 = pod.Platform{OS: "windows", Arch: "amd64", Build: 17763, SharedNetwork: true}
)

type (
	logStore     = logs.Store
	imageStore   = images.Store
	networkStore = networks.Store
)

// doors is an Engine with all its parts embedded.
type doors struct {
	*engine.Client
	*logStore
	*imageStore
	*exec.Executor
	*networkStore
	*usage.Meter
	*containers.Runtime
}

func open(e *Engine) doors {
	return doors{e.Client, e.Logs, e.Images, e.Exec, e.Networks, e.Usage, e.Containers}
}

// rig is an Engine with one image, on a fake or on a real engine.
type rig struct {
	doors
	cfg   Config // of the Engine
	t     *testing.T
	fake  *dockertest.Engine // nil: a real engine
	image pod.Image
	net   string
	dir   string
}

const testImage = "winkube.test/program:1"

// fakeRig serves a fake with opts and creates an Engine, with a Config that tweak may change.
func fakeRig(t *testing.T, opts dockertest.Options, tweak func(*Config)) *rig {
	t.Helper()
	if opts.Program == nil {
		opts.Program = findProgram
	}
	fake := dockertest.New(opts)
	server := httptest.NewServer(fake)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	fake.AddImage(dockertest.Image{Names: []string{testImage}, Entrypoint: []string{programPath}, Size: 1000})
	platform := linux
	if opts.OS == "windows" {
		platform = pod.Platform{OS: "windows", Arch: "amd64", Build: opts.Build, SharedNetwork: opts.Build >= 16299}
	}
	return newRig(t, Config{Host: "tcp://" + server.Listener.Addr().String(), Platform: platform}, fake, tweak)
}

// imageRef is testImage's reference in statuses. No registry has it: it is the image's id, or its manifest's digest in containerd's store.
func (r *rig) imageRef() string {
	if strings.HasPrefix(r.image.Ref, "docker-pullable://") {
		return "docker-pullable://winkube.test/program@" + r.image.ID
	}
	return "docker://" + r.image.ID
}

// realRig uses the engine that the environment names.
func realRig(t *testing.T, tweak func(*Config)) *rig {
	t.Helper()
	host := os.Getenv(realHost)
	if host == "" {
		t.Skipf("needs a Docker engine on Linux: set %s to its host (unix:///path)", realHost)
	}
	importProgram(t, host)
	return newRig(t, Config{Host: host, Platform: pod.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH, SharedNetwork: true}}, nil, tweak)
}

func newRig(t *testing.T, cfg Config, fake *dockertest.Engine, tweak func(*Config)) *rig {
	cfg.Node = fmt.Sprintf("test-%d-%s", os.Getpid(), strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
	cfg.InfraImage = testImage
	cfg.Hash = func(*v1.Container) string { return "5eed" }
	if tweak != nil {
		tweak(&cfg)
	}
	cfg.CallTimeout, cfg.StopSlack = cmp.Or(cfg.CallTimeout, 2*time.Minute), cmp.Or(cfg.StopSlack, 30*time.Second)
	cfg.PullProgressDeadline = cmp.Or(cfg.PullProgressDeadline, time.Minute)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{doors: open(e), cfg: cfg, t: t, fake: fake, net: "winkube-test", dir: t.TempDir()}
	t.Cleanup(r.clean)
	var found bool
	if r.image, found, err = r.Lookup(t.Context(), testImage); err != nil || !found {
		t.Fatalf("image of the tests: found %v, %v", found, err)
	}
	network := pod.EngineNetwork{Name: r.net, Driver: "bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.231.7.0/24")}}
	if cfg.Platform.OS == "windows" {
		network.Driver = "transparent"
	}
	if err := r.EnsureNetwork(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	return r
}

// ordinary are the seams of New.
var ordinary = seams{inspections: 8}

// rebuild recreates the rig's Engine, as another agent with the same cfg.
func (r *rig) rebuild(s seams) {
	r.t.Helper()
	e, err := build(r.cfg, s)
	if err != nil {
		r.t.Fatal(err)
	}
	r.doors = open(e)
}

// start has the engine start a container on behalf of a dead agent.
func (r *rig) start(id string) {
	r.t.Helper()
	c, err := r.API(r.t.Context())
	if err == nil {
		err = c.ContainerStart(r.t.Context(), id, container.StartOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// clean removes what the test left on a real engine.
func (r *rig) clean() {
	if r.fake != nil {
		return
	}
	ctx := context.Background()
	c, err := r.API(ctx)
	if err != nil {
		return
	}
	list, err := c.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", identity.LabelNode+"="+r.cfg.Node))})
	if err != nil {
		r.t.Error(err)
	}
	for _, found := range list {
		_ = c.ContainerRemove(ctx, found.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
	}
	_ = r.RemoveNetwork(ctx, r.net)
}

var importOnce sync.Once

// importProgram creates an image of this test binary, which must be static.
func importProgram(t *testing.T, host string) {
	importOnce.Do(func() {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if binary, err := elf.NewFile(bytes.NewReader(self)); err != nil || binary.Section(".interp") != nil {
			t.Fatalf("the test binary runs inside the containers and must be static: run with CGO_ENABLED=0 and without -race (%v)", err)
		}
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, file := range []struct {
			name string
			data []byte
		}{{programPath[1:], self}, {"tmp/keep", nil}} {
			if err := w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o755, Size: int64(len(file.data))}); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(file.data)
		}
		w.Close()
		c, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.ImageImport(t.Context(), image.ImportSource{Source: &archive, SourceName: "-"}, testImage,
			image.ImportOptions{Changes: []string{`ENTRYPOINT ["` + programPath + `"]`}})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer)
		answer.Close()
	})
}

func resources(cpu, memory string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}}
}

// pod returns a pod with one container per command.
func (r *rig) pod(name string, commands ...[]string) *v1.Pod {
	grace := int64(7)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}}
	p.Spec.TerminationGracePeriodSeconds = &grace
	for i, command := range commands {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{
			Name: fmt.Sprintf("c%d", i), Image: testImage, Command: []string{programPath}, Args: command, TerminationMessagePath: v1.TerminationMessagePathDefault,
		})
	}
	return p
}

// apply carries out a step and fails the test on an error.
func (r *rig) apply(p *v1.Pod, step pod.Step) {
	r.t.Helper()
	if err := r.Apply(r.t.Context(), p, step); err != nil {
		r.t.Fatalf("%s %s: %v", step.Action, step.Container, err)
	}
}

// sandbox starts the pod's sandbox and returns its id.
func (r *rig) sandbox(p *v1.Pod) string {
	r.t.Helper()
	r.apply(p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: p.Name}})
	return r.observed(p).Sandboxes[0].ID
}

// step returns the step that starts container i of p.
func (r *rig) step(p *v1.Pod, i int, sandbox string) pod.Step {
	c := p.Spec.Containers[i]
	in := &pod.Inputs{Image: r.image, Entrypoint: c.Command, Args: c.Args, SandboxID: sandbox}
	if sandbox == "" {
		in.Sandbox = &pod.SandboxInputs{Network: r.net, Hostname: p.Name}
	}
	return pod.Step{Action: pod.StartContainer, Container: c.Name, Kind: podspec.App, Inputs: in}
}

// run starts a pod with sandbox and containers and returns the containers' ids in their order.
func (r *rig) run(p *v1.Pod) []string {
	r.t.Helper()
	var sandbox string
	if r.cfg.Platform.SharedNetwork {
		sandbox = r.sandbox(p)
	}
	var ids []string
	for i := range p.Spec.Containers {
		r.apply(p, r.step(p, i, sandbox))
	}
	o := r.observed(p)
	for _, c := range p.Spec.Containers {
		for _, have := range o.Containers {
			if have.Name == c.Name {
				ids = append(ids, have.ID)
			}
		}
	}
	if len(ids) != len(p.Spec.Containers) {
		r.t.Fatalf("want %d containers, have %+v", len(p.Spec.Containers), o)
	}
	return ids
}

func (r *rig) observed(p *v1.Pod) pod.Observed {
	r.t.Helper()
	o, err := r.Observe(r.t.Context(), p.UID)
	if err != nil {
		r.t.Fatal(err)
	}
	return o
}

// container returns the newest attempt of the only or named container.
func (r *rig) container(p *v1.Pod, name string) pod.Container {
	r.t.Helper()
	for _, c := range r.observed(p).Containers {
		if c.Name == name {
			return c
		}
	}
	r.t.Fatalf("pod %s has no container %s", p.Name, name)
	return pod.Container{}
}

// exited waits, using the engine's events, until the container has ended.
func (r *rig) exited(p *v1.Pod, name string) pod.Container {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	changes := r.Changes(ctx)
	for {
		if c := r.container(p, name); c.State == pod.Exited {
			return c
		}
		if _, ok := <-changes; !ok {
			r.t.Fatalf("container %s did not end", name)
		}
	}
}

// hung makes matching requests hang, has call make one, then advances clock by patience. It returns the result of call.
func (r *rig) hung(match string, clock *testclock.FakeClock, patience time.Duration, call func(context.Context) error) (release func(), err error) {
	r.t.Helper()
	r.fake.Requests(true)
	release = r.fake.Hang(match)
	done := make(chan error, 1)
	go func() { done <- call(r.t.Context()) }()
	r.requested(match)
	clock.Step(patience)
	return release, <-done
}

// requested waits for a matching request.
func (r *rig) requested(match string) {
	r.t.Helper()
	r.await(match, func() bool {
		return slices.ContainsFunc(r.fake.Requests(false), func(request string) bool {
			ok, _ := path.Match(match, request)
			return ok
		})
	})
}

// deadline is a context whose deadline the test triggers.
type deadline struct {
	context.Context
	over chan struct{}
}

func newDeadline(t *testing.T) deadline { return deadline{t.Context(), make(chan struct{})} }

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func (r *rig) file(name, content string) string {
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// deadEnd is an address without a listener.
func deadEnd(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "tcp://" + l.Addr().String()
}
