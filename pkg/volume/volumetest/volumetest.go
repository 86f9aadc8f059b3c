// Package volumetest has an API server and a kernel in memory for tests of volumes, and a Manager over them.
package volumetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/kinds"
	"github.com/winkube/winkube/pkg/volume/mount"
)

// Linux and Windows are platforms that tests make pods for, on any machine.
func Linux() pod.Platform { return pod.Platform{OS: "linux", SharedNetwork: true} }

// Windows is a Windows Server 2016.
func Windows() pod.Platform { return pod.Platform{OS: "windows", Build: 14393} }

// API is an API server in maps: what it holds by name, claims by "namespace/name". Change it between calls only.
type API struct {
	Secrets    map[string]map[string][]byte
	ConfigMaps map[string]map[string]string
	ThisNode   *v1.Node
	Clock      *testclock.FakePassiveClock
	Ahead      time.Duration // of the API server's clock before ours
	Claims     map[string]*v1.PersistentVolumeClaim
	Volumes    map[string]*v1.PersistentVolume
	Bundles    []certificatesv1beta1.ClusterTrustBundle
	NoBundles  error
	Asked      int // for claims
	asking     sync.Mutex
	Tokens     int
	Down       error
}

// Claim implements kinds.Objects.
func (o *API) Claim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	o.asking.Lock()
	o.Asked++
	o.asking.Unlock()
	if o.Down != nil {
		return nil, o.Down
	}
	if c := o.Claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, name)
}

// Patched returns what a claim is after a merge patch, with another resource version. The claim that tests hold stays as it is.
func (o *API) Patched(namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error) {
	claim := o.Claims[namespace+"/"+name].DeepCopy()
	seen := claim.ResourceVersion
	if err := json.Unmarshal(patch, claim); err != nil {
		return nil, err
	}
	if got := strings.TrimSuffix(claim.ResourceVersion, "+"); got != seen {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, name, fmt.Errorf("the patch is for version %s, want %s", got, seen))
	}
	claim.ResourceVersion = seen + "+"
	return claim, nil
}

// PersistentVolume implements kinds.Objects.
func (o *API) PersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	if pv := o.Volumes[name]; pv != nil && o.Down == nil {
		return pv, nil
	}
	return nil, errors.Join(o.Down, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name))
}

// TrustBundles implements kinds.Objects.
func (o *API) TrustBundles(_ context.Context, name, signer, _ string) ([]certificatesv1beta1.ClusterTrustBundle, error) {
	return o.Bundles, o.NoBundles
}

// Secret implements kinds.Objects.
func (o *API) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	d, ok := o.Secrets[name]
	if o.Down != nil {
		return nil, o.Down
	}
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return &v1.Secret{Data: d}, nil
}

// ConfigMap implements kinds.Objects.
func (o *API) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	d, ok := o.ConfigMaps[name]
	if o.Down != nil {
		return nil, o.Down
	}
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &v1.ConfigMap{Data: d, BinaryData: map[string][]byte{}}, nil
}

// Token implements kinds.Objects.
func (o *API) Token(_ context.Context, ns, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if o.Down != nil {
		return nil, o.Down
	}
	o.Tokens++
	r = r.DeepCopy()
	r.Status.Token = fmt.Sprintf("%s/%s %v for %s #%d", ns, account, r.Spec.Audiences, r.Spec.BoundObjectRef.UID, o.Tokens)
	r.Status.ExpirationTimestamp = metav1.NewTime(o.Clock.Now().Add(o.Ahead + time.Duration(*r.Spec.ExpirationSeconds)*time.Second))
	return r, nil
}

// Node implements kinds.Objects.
func (o *API) Node() *v1.Node { return o.ThisNode }

// Kernel is a mount.Mounter in memory: what is below a mount point is what was there before. Use its fields between calls only.
type Kernel struct {
	Points  []string
	Options map[string]string
	Stuck   string        // what cannot be unmounted
	Hung    chan struct{} // not nil: Unmount waits until Force or the test closes it
	Forced  []string      // what was unmounted by force
	mu      sync.Mutex
}

// Add mounts something at dir, as a driver does.
func (k *Kernel) Add(dir, options string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Points = append(k.Points, dir)
	k.Options[dir] = options
}

// Tmpfs implements mount.Mounter.
func (k *Kernel) Tmpfs(dir, options string) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	k.Add(dir, options)
	return nil
}

// Bind implements mount.Mounter.
func (k *Kernel) Bind(source *os.File, target string) error {
	s, err := source.Stat()
	if err != nil {
		return err
	}
	t, err := os.Stat(target)
	if err != nil || s.IsDir() != t.IsDir() {
		return fmt.Errorf("cannot bind: target %s: %v", target, err)
	}
	k.Add(target, "bind "+source.Name())
	return nil
}

// Unmount implements mount.Mounter.
func (k *Kernel) Unmount(target string) error {
	if target == k.Stuck {
		return errors.New("cannot unmount: busy")
	}
	k.mu.Lock()
	hung := k.Hung
	k.mu.Unlock()
	if hung != nil {
		<-hung
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := len(k.Points) - 1; i >= 0; i-- {
		if k.Points[i] == target {
			k.Points = append(k.Points[:i], k.Points[i+1:]...)
			return nil
		}
	}
	return nil
}

// Force implements mount.Mounter. It ends a Hung Unmount.
func (k *Kernel) Force(target string) error {
	k.mu.Lock()
	hung := k.Hung
	k.Forced = append(k.Forced, target)
	k.Hung = nil
	k.mu.Unlock()
	if hung != nil {
		close(hung)
	}
	return k.Unmount(target)
}

// IsMount implements mount.Mounter.
func (k *Kernel) IsMount(path string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.Points {
		if p == path {
			return true, nil
		}
	}
	return false, nil
}

// Has implements mount.Mounter.
func (k *Kernel) Has(path string) (bool, error) { return k.IsMount(path) }

// Below implements mount.Mounter.
func (k *Kernel) Below(dir string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, p := range k.Points {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out, nil
}

// Rig is a Manager with all kinds of this agent, over an API server and a kernel in memory.
type Rig struct {
	*volume.Manager
	Host   volume.Host
	API    *API
	Clock  *testclock.FakePassiveClock
	Kernel *Kernel // not used with other Mounts
	// Images is the engine that images come from; nil: a test without any.
	Images kinds.Images
	// Program runs instead of programs of the host; nil: there are none.
	Program func(ctx context.Context, name string, args ...string) error
	// Prepared is called as volume.Parts has it.
	Prepared func(plugin string, took time.Duration, err error)
	// SetAccess gets the access lists of pods on Windows.
	SetAccess func(path, sddl string) error
	t         testing.TB
}

// New makes a Rig in a temporary directory.
func New(t testing.TB, platform pod.Platform) *Rig {
	t.Helper()
	k := &Kernel{Options: map[string]string{}}
	r := NewWith(t, platform, k)
	r.Kernel = k
	return r
}

// NewWith makes a Rig with other mounts.
func NewWith(t testing.TB, platform pod.Platform, mounts mount.Mounter) *Rig {
	t.Helper()
	if platform.OS == "linux" && filepath.Separator != '/' {
		t.Skip("modes and links of volumes for Linux need a Linux file system")
	}
	c := testclock.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r := &Rig{t: t, Clock: c, API: &API{Secrets: map[string]map[string][]byte{}, ConfigMaps: map[string]map[string]string{}, Clock: c}}
	r.Prepared = func(string, time.Duration, error) {}
	r.SetAccess = func(string, string) error { return nil }
	host, err := volume.Open(filepath.Join(t.TempDir(), "root"), platform)
	if err != nil {
		t.Fatal(err)
	}
	if platform.OS == "linux" {
		host.Mounts = mounts
	}
	host.Access.Set = func(path, sddl string) error { return r.SetAccess(path, sddl) }
	r.Host = host
	r.Restart()
	return r
}

// Restart makes a new Manager, which knows what lies on disk alone, with the kinds of this agent and others.
func (r *Rig) Restart(others ...volume.Kind) {
	r.t.Helper()
	all := kinds.All(r.Host, kinds.Parts{Objects: r.API, Images: images{r}, Clock: r.Clock, Run: r})
	parts := volume.Parts{Claims: r.API, Kinds: append(all, others...), Clock: r.Clock,
		Prepared: func(plugin string, took time.Duration, err error) { r.Prepared(plugin, took, err) }}
	m, err := volume.New(r.Host, parts)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Manager = m
}

// images are the Rig's, which a test may exchange.
type images struct{ *Rig }

func (i images) Ensure(ctx context.Context, p *v1.Pod, v *v1.Volume) (pod.Image, error) {
	return i.Images.Ensure(ctx, p, v)
}

func (i images) Export(ctx context.Context, id string) (io.ReadCloser, error) {
	return i.Images.Export(ctx, id)
}

// Run implements command.Runner: programs of the host are the test's.
func (r *Rig) Run(ctx context.Context, _ []byte, name string, args ...string) ([]byte, error) {
	if r.Program == nil {
		return nil, fmt.Errorf("cannot run %q: %w", name, command.ErrNotFound)
	}
	return nil, r.Program(ctx, name, args...)
}

// MustPrepare is Prepare of a pod that cannot fail.
func (r *Rig) MustPrepare(p *v1.Pod) map[string]string {
	r.t.Helper()
	paths, err := r.Prepare(r.t.Context(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	return paths
}

// Mount is what the first container of p gets with vm as its only mount.
func (r *Rig) Mount(p *v1.Pod, vm v1.VolumeMount, env ...pod.Env) (pod.Mount, error) {
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{vm}
	out, err := r.Mounts(r.t.Context(), p, &p.Spec.Containers[0], env)
	if err != nil {
		return pod.Mount{}, err
	}
	return out[0], nil
}

// Bind gives the API server a bound claim in the namespace of Pod, and its volume.
func (r *Rig) Bind(claim string, source v1.PersistentVolumeSource) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	if r.API.Claims == nil {
		r.API.Claims, r.API.Volumes = map[string]*v1.PersistentVolumeClaim{}, map[string]*v1.PersistentVolume{}
	}
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "shop", UID: "claim-1"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: source, ClaimRef: &v1.ObjectReference{UID: "claim-1"}}}
	r.API.Claims["shop/"+claim], r.API.Volumes["pv"] = c, pv
	return c, pv
}

// Pod is web in namespace shop, with one container.
func Pod(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1", Labels: map[string]string{"app": "web", "a": `quo"te`}},
		Spec:       v1.PodSpec{Volumes: volumes, Containers: []v1.Container{{Name: "c"}}},
	}
}

// Vol is a volume of a pod.
func Vol(name string, s v1.VolumeSource) v1.Volume { return v1.Volume{Name: name, VolumeSource: s} }

// ConfigMapVol is a volume with all keys of a ConfigMap.
func ConfigMapVol(name, cm string) v1.Volume {
	return Vol(name, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: cm}}})
}

// ClaimVol is the volume v, of the claim data.
func ClaimVol(readOnly bool) v1.Volume {
	return Vol("v", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: readOnly}})
}

// HostVol is a hostPath volume.
func HostVol(name, path string, kind v1.HostPathType) v1.Volume {
	return Vol(name, v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}})
}

// Tree prints the files that a container sees in dir: path, mode, content.
func Tree(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	var walk func(rel string)
	walk = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			p := filepath.Join(rel, e.Name())
			if strings.HasPrefix(e.Name(), "..") {
				continue
			}
			fi, err := os.Stat(filepath.Join(dir, p))
			if err != nil {
				t.Fatal(err)
			}
			if fi.IsDir() {
				walk(p)
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, p))
			if err != nil {
				t.Fatal(err)
			}
			mode := fi.Mode().Perm()
			if filepath.Separator == '\\' && mode == 0o666 {
				mode = 0o644 // a file has no modes there but read-only
			}
			out = append(out, fmt.Sprintf("%s %o %s\n", filepath.ToSlash(p), mode, b))
		}
	}
	walk("")
	sort.Strings(out)
	return strings.Join(out, "")
}
