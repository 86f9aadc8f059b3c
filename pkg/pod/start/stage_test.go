package start

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// stage is all dependencies of a Resolver, in memory: image store, volumes, network, API objects, Events. It records what was done.
type stage struct {
	t        *testing.T
	mu       sync.Mutex
	log      []string // events and pulls, in order
	present  map[string]pod.Image
	registry map[string]error // by image; absent: no such image
	files    map[string]string
	volumes  map[string]string // host paths
	broken   map[string]error  // by verb: prepare, mounts, write, join, services, lookup, object
	secrets  map[string]*v1.Secret
	maps     map[string]*v1.ConfigMap
	services map[string][]*v1.Service
	classes  map[string]string // RuntimeClasses and their handlers
	node     *v1.Node
	clock    *testingclock.FakePassiveClock
	cfg      Config
}

func newStage(t *testing.T) *stage {
	dir := t.TempDir()
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 192.168.0.53\nnameserver 127.0.0.11\nsearch corp.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &stage{
		t:        t,
		present:  map[string]pod.Image{"app:1": {ID: "sha256:1", Ref: "docker://sha256:1", User: "1000", Size: 42}},
		registry: map[string]error{"new:1": nil, "app:latest": nil, "down:1": pod.ErrRegistryUnavailable},
		files:    map[string]string{}, volumes: map[string]string{}, broken: map[string]error{},
		secrets: map[string]*v1.Secret{"pull": {Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"docker.io":{"username":"u","password":"hunter2"}}`)}},
			"s": {Data: map[string][]byte{"k": []byte("hunter2")}}},
		maps: map[string]*v1.ConfigMap{"cm": {Data: map[string]string{"a": "1"}}},
		services: map[string][]*v1.Service{
			"default": {service("default", "kubernetes", "10.96.0.1", v1.ServicePort{Port: 443})},
			"shop":    {service("shop", "db", "10.96.0.2", v1.ServicePort{Port: 5432})},
		},
		clock: testingclock.NewFakePassiveClock(time.Unix(0, 0)),
		cfg: Config{
			NodeName: "node-a", Platform: pod.Platform{OS: "linux", Arch: "amd64", SharedNetwork: true}, ClusterDNS: addrs("10.96.0.10"),
			ClusterDomain: "cluster.local", ResolvConf: conf, HostIPs: func() []netip.Addr { return addrs("192.168.0.1") },
			Capacity: func() v1.ResourceList {
				return v1.ResourceList{"memory": resource.MustParse("10Gi"), "cpu": resource.MustParse("4")}
			},
		},
	}
}

func (s *stage) resolver() *Resolver {
	r := New(s.cfg, NewPuller(s.cfg, PullerParts{Images: s, Objects: s, Recorder: s, Clock: s.clock}), stageVolumes{s}, s)
	r.hostsPath = filepath.Join(filepath.Dir(s.cfg.ResolvConf), "hosts")
	return r
}

func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// told returns the records since the last call.
func (s *stage) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.log, "\n")
	s.log = nil
	return out
}

func (s *stage) Lookup(_ context.Context, name string) (pod.Image, bool, error) {
	image, found := s.present[name]
	return image, found, s.broken["lookup"]
}

func (s *stage) Pull(ctx context.Context, name string, creds []pod.Credential) (pod.Image, int, error) {
	s.note("pull %s %v", name, creds)
	s.clock.SetTime(s.clock.Now().Add(1500 * time.Millisecond))
	if ctx.Err() != nil {
		return pod.Image{}, -1, ctx.Err()
	}
	err, known := s.registry[name]
	if !known {
		err = errors.New("manifest unknown")
	}
	if err != nil {
		return pod.Image{}, -1, err
	}
	s.present[name] = pod.Image{ID: "sha256:" + name, Size: 7, User: "5"}
	return s.present[name], len(creds) - 1, nil
}

func (s *stage) Join(*v1.Pod) (string, error) { return "winkube", s.broken["join"] }

func (s *stage) Register(*v1.Pod) { s.t.Error("a Resolver registers no pods") }

func (s *stage) Unregister(types.UID) { s.t.Error("a Resolver unregisters no pods") }

func (s *stage) Changed() <-chan types.UID { return nil }

func (s *stage) Node() *v1.Node { return s.node }

func (s *stage) Services(ns string) ([]*v1.Service, error) {
	return s.services[ns], s.broken["services"]
}

func (s *stage) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if object, ok := s.secrets[name]; ok && namespace == "shop" {
		return object, s.broken["object"]
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func (s *stage) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	if object, ok := s.maps[name]; ok && namespace == "shop" {
		return object, s.broken["object"]
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (s *stage) Token(context.Context, string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return nil, errors.New("a Resolver asks for no tokens")
}

func (s *stage) Event(object kruntime.Object, kind, reason, message string) {
	where := "pod"
	if ref, ok := object.(*v1.ObjectReference); ok {
		if ref.Name != "web" || ref.UID != "u1" || ref.Kind != "Pod" || ref.APIVersion != "v1" {
			s.t.Errorf("event about %+v", ref)
		}
		if ref.FieldPath != "" {
			where = ref.FieldPath
		}
	}
	s.note("%s %s %s: %s", kind, reason, where, message)
}

func (s *stage) Eventf(object kruntime.Object, kind, reason, format string, args ...any) {
	s.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (s *stage) AnnotatedEventf(object kruntime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	s.Eventf(object, kind, reason, format, args...)
}

func class(name string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.RuntimeClassName = &name }
}

func (s *stage) RuntimeHandler(_ context.Context, name string) (string, error) {
	handler, ok := s.classes[name]
	if !ok {
		return "", apierrors.NewNotFound(schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}, name)
	}
	return handler, s.broken["object"]
}

// stageVolumes separates the methods of Volumes: two of their names also exist in other interfaces.
type stageVolumes struct{ *stage }

func (s stageVolumes) Prepare(context.Context, *v1.Pod) (map[string]string, error) {
	return s.volumes, s.broken["prepare"]
}

func (s stageVolumes) Mounts(_ context.Context, _ *v1.Pod, container *v1.Container, env []pod.Env) ([]pod.Mount, error) {
	var out []pod.Mount
	for _, m := range container.VolumeMounts {
		out = append(out, pod.Mount{Name: m.Name, HostPath: fmt.Sprintf("/vol/%s/%d", m.Name, len(env)), ContainerPath: m.MountPath})
	}
	return out, s.broken["mounts"]
}

func (s stageVolumes) Devices(_ *v1.Pod, c *v1.Container) ([]pod.Device, error) {
	var out []pod.Device
	for _, d := range c.VolumeDevices {
		out = append(out, pod.Device{HostPath: s.volumes[d.Name], ContainerPath: d.DevicePath})
	}
	return out, nil
}

func (s stageVolumes) WriteFile(uid types.UID, name string, data []byte, mode uint32) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if data != nil || s.files[name] == "" {
		s.files[name] = fmt.Sprintf("%o %s", mode, data)
	}
	return "/pods/" + string(uid) + "/" + name, s.broken["write"]
}

func (s stageVolumes) MakeDir(uid types.UID, name string) (string, error) {
	return "/pods/" + string(uid) + "/" + name, s.broken["dir"]
}

func (s stageVolumes) KeepFiles(_ types.UID, dir string, keep ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.files {
		if base, ok := strings.CutPrefix(name, dir+"/"); ok && !slices.Contains(keep, base) {
			delete(s.files, name)
		}
	}
	return s.broken["keep"]
}

func (s stageVolumes) Clean(context.Context, types.UID) error {
	return errors.New("a Resolver cleans nothing")
}

func (s stageVolumes) Leftovers() ([]types.UID, error) { return nil, nil }

func stagePod(change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app", Image: "app:1"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

var inSandbox1 = pod.Attempt{Kind: podspec.App, Number: 2, SandboxID: "box", Addresses: addrs("10.1.0.5")}

func container(change func(*v1.Container)) func(*v1.Pod) {
	return func(p *v1.Pod) { change(&p.Spec.Containers[0]) }
}
