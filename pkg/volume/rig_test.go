package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
)

var (
	linux   = pod.Platform{OS: "linux", SharedNetwork: true}
	windows = pod.Platform{OS: "windows", Build: 14393}
)

// objects is an API server in a map. "Kind/name" -> what it holds.
type objects struct {
	secrets    map[string]map[string][]byte
	configMaps map[string]map[string]string
	node       *v1.Node
	clock      *testclock.FakePassiveClock
	ahead      time.Duration // of the API server's clock before ours
	claims     map[string]*v1.PersistentVolumeClaim
	pvs        map[string]*v1.PersistentVolume
	bundles    []certificatesv1beta1.ClusterTrustBundle
	noBundles  error
	asked      int // for claims
	tokens     int
	down       error
}

func (o *objects) Claim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	o.asked++
	if o.down != nil {
		return nil, o.down
	}
	if c := o.claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, name)
}

func (o *objects) PersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	if pv := o.pvs[name]; pv != nil && o.down == nil {
		return pv, nil
	}
	return nil, errors.Join(o.down, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name))
}

func (o *objects) TrustBundles(_ context.Context, name, signer, _ string) ([]certificatesv1beta1.ClusterTrustBundle, error) {
	return o.bundles, o.noBundles
}

func (o *objects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	d, ok := o.secrets[name]
	if o.down != nil {
		return nil, o.down
	}
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return &v1.Secret{Data: d}, nil
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	d, ok := o.configMaps[name]
	if o.down != nil {
		return nil, o.down
	}
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &v1.ConfigMap{Data: d, BinaryData: map[string][]byte{}}, nil
}

func (o *objects) Token(_ context.Context, ns, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if o.down != nil {
		return nil, o.down
	}
	o.tokens++
	r = r.DeepCopy()
	r.Status.Token = fmt.Sprintf("%s/%s %v for %s #%d", ns, account, r.Spec.Audiences, r.Spec.BoundObjectRef.UID, o.tokens)
	r.Status.ExpirationTimestamp = metav1.NewTime(o.clock.Now().Add(o.ahead + time.Duration(*r.Spec.ExpirationSeconds)*time.Second))
	return r, nil
}

func (o *objects) Node() *v1.Node { return o.node }

// fakeKernel is a mounter in memory: what is below a mount point is what was there before.
type fakeKernel struct {
	points []string
	opts   map[string]string
	stuck  string
}

func (k *fakeKernel) tmpfs(dir, options string) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	k.points = append(k.points, dir)
	k.opts[dir] = options
	return nil
}

func (k *fakeKernel) bind(source *os.File, target string) error {
	s, err := source.Stat()
	if err != nil {
		return err
	}
	t, err := os.Stat(target)
	if err != nil || s.IsDir() != t.IsDir() {
		return fmt.Errorf("cannot bind: target %s: %v", target, err)
	}
	k.points = append(k.points, target)
	k.opts[target] = "bind " + source.Name()
	return nil
}

func (k *fakeKernel) unmount(target string) error {
	if target == k.stuck {
		return errors.New("cannot unmount: busy")
	}
	for i := len(k.points) - 1; i >= 0; i-- {
		if k.points[i] == target {
			k.points = append(k.points[:i], k.points[i+1:]...)
			return nil
		}
	}
	return nil
}

func (k *fakeKernel) isMount(path string) (bool, error) {
	for _, p := range k.points {
		if p == path {
			return true, nil
		}
	}
	return false, nil
}

func (k *fakeKernel) below(dir string) ([]string, error) {
	var out []string
	for _, p := range k.points {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out, nil
}

type rig struct {
	*Manager
	t      *testing.T
	api    *objects
	clock  *testclock.FakePassiveClock
	kernel *fakeKernel
}

func newRig(t *testing.T, platform pod.Platform) *rig {
	t.Helper()
	if platform.OS == "linux" && filepath.Separator != '/' {
		t.Skip("modes and links of volumes for Linux need a Linux file system")
	}
	c := testclock.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	api := &objects{secrets: map[string]map[string][]byte{}, configMaps: map[string]map[string]string{}, clock: c}
	k := &fakeKernel{opts: map[string]string{}}
	m, err := newManager(Config{Root: filepath.Join(t.TempDir(), "root"), Platform: platform}, Parts{Objects: api, Clock: c}, k)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{Manager: m, t: t, api: api, clock: c, kernel: k}
}

func makePod(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1", Labels: map[string]string{"app": "web", "a": `quo"te`}},
		Spec:       v1.PodSpec{Volumes: volumes, Containers: []v1.Container{{Name: "c"}}},
	}
}

func vol(name string, s v1.VolumeSource) v1.Volume { return v1.Volume{Name: name, VolumeSource: s} }

func configMapVol(name, cm string) v1.Volume {
	return vol(name, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: cm}}})
}

func (r *rig) prepare(p *v1.Pod) map[string]string {
	r.t.Helper()
	paths, err := r.Prepare(r.t.Context(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	return paths
}

// tree prints the files that a container sees in dir: path, mode, content.
func tree(t *testing.T, dir string) string {
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
			if runtime.GOOS == "windows" && mode == 0o666 {
				mode = 0o644 // a file has no modes there but read-only
			}
			out = append(out, fmt.Sprintf("%s %o %s\n", filepath.ToSlash(p), mode, b))
		}
	}
	walk("")
	sort.Strings(out)
	return strings.Join(out, "")
}

// inodes maps every name below dir, links and hidden ones too, to its identity.
func inodes(t *testing.T, dir string) map[string]fs.FileInfo {
	t.Helper()
	out := map[string]fs.FileInfo{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		out[p], err = os.Lstat(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sameInodes(a, b map[string]fs.FileInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for p, fi := range a {
		if b[p] == nil || !os.SameFile(fi, b[p]) || !fi.ModTime().Equal(b[p].ModTime()) {
			return false
		}
	}
	return true
}

func ptr[T any](v T) *T { return &v }
