// Package volume is the arrow from a pod's spec to directories on this host (kubelet): it implements pod.Volumes.
//
//	pod.Prepare -> Secrets, ConfigMaps, tokens, pod fields -> payload -> writer -> RootDir/pods/<uid>/volumes/...
//	pod.Mounts  -> one container's mounts, subPaths made safe
//	pod.Clean   -> unmounts and deletes RootDir/pods/<uid>, never what lies behind a hostPath
//
// What goes into a file is decided purely (payload.go, downward.go); one writer brings it to disk, in one of two layouts. Mount calls
// stand behind the interface mounter.
package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

// Config says where and for what platform volumes are made.
type Config struct {
	// Root is the agent's root directory (--root-dir); volumes are below Root/pods/<uid>. It is made when missing.
	Root     string
	Platform pod.Platform
}

// Objects is what volumes read from the API server; pod.Objects has it.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Node() *v1.Node
	Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
	// TrustBundles lists the ClusterTrustBundle called name, or when name is "" those of signer that selector chooses.
	TrustBundles(ctx context.Context, name, signer, selector string) ([]certificatesv1beta1.ClusterTrustBundle, error)
}

// Images is what image volumes are made from; nil Parts.Images: there are none.
type Images interface {
	// Ensure makes the image of v present, as its pull policy says, and tells the pod of it by events.
	Ensure(ctx context.Context, p *v1.Pod, v *v1.Volume) (pod.Image, error)
	// Export returns the file system of the image with that id as a tar archive.
	Export(ctx context.Context, id string) (io.ReadCloser, error)
}

// Parts are what a Manager works with.
type Parts struct {
	Objects Objects
	Images  Images
	Clock   clock.PassiveClock
	// Prepared takes in how long it took to make a volume of that plugin ready, or that it could not be; nil: nobody wants to know.
	Prepared func(plugin string, took time.Duration, err error)
}

// Manager owns the pods' directories. Calls for different pods run at the same time, those for one pod after each other.
type Manager struct {
	cfg     Config
	objects Objects
	images  images
	clock   clock.PassiveClock
	told    func(plugin string, took time.Duration, err error) // nil: nobody
	mounts  mounter                                            // nil: this system has no mounts (Windows); everything is a plain directory
	// setAccess gives a directory an access list (SDDL); nil where there are none.
	setAccess func(path, sddl string) error
	writer    writer

	mu   sync.Mutex
	pods map[types.UID]*podState
}

// podState is what is remembered of one pod between calls. All of it can be lost.
type podState struct {
	sync.Mutex
	tokens map[tokenKey]token
	claims map[string]backing // by name of the volume; Manager.mu guards it
}

var _ pod.Volumes = (*Manager)(nil)

// Modes of our own directories: others of the host have no business there. Containers are not stopped by them, since the engine mounts
// the directories below.
const dirMode = 0o750

// New makes cfg.Root/pods and returns its Manager.
func New(cfg Config, parts Parts) (*Manager, error) {
	return newManager(cfg, parts, newMounter())
}

func newManager(cfg Config, parts Parts, mounts mounter) (*Manager, error) {
	if err := os.MkdirAll(cfg.Root, dirMode); err != nil {
		return nil, fmt.Errorf("cannot make the root directory: %w", err)
	}
	// The kernel lists mounts by their real paths.
	root, err := filepath.EvalSymlinks(cfg.Root)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot resolve the root directory: %w", err)
	}
	cfg.Root = root
	if err := makeDir(filepath.Join(root, "pods"), dirMode); err != nil {
		return nil, fmt.Errorf("cannot make the pods' directory: %w", err)
	}
	if cfg.Platform.OS == "windows" {
		mounts = nil
	}
	m := &Manager{cfg: cfg, objects: parts.Objects, clock: parts.Clock, told: parts.Prepared, mounts: mounts, pods: map[types.UID]*podState{}}
	m.images = images{source: parts.Images, dir: filepath.Join(root, imagesName)}
	if cfg.Platform.OS == "windows" {
		m.setAccess = setAccess
	}
	m.writer = writer{layout: layoutFor(cfg.Platform), clock: parts.Clock}
	return m, nil
}

// lock locks what is kept of pod uid; the caller unlocks it.
func (m *Manager) lock(uid types.UID) *podState {
	m.mu.Lock()
	s := m.pods[uid]
	if s == nil {
		s = &podState{tokens: map[tokenKey]token{}, claims: map[string]backing{}}
		m.pods[uid] = s
	}
	m.mu.Unlock()
	s.Lock()
	return s
}

// podDir is the directory of one pod.
func (m *Manager) podDir(uid types.UID) (string, error) {
	if err := checkElement(m.cfg.Platform, string(uid)); err != nil {
		return "", fmt.Errorf("metadata.uid: %w", err)
	}
	return filepath.Join(m.cfg.Root, "pods", string(uid)), nil
}

// Prepare implements pod.Volumes. The error reads as upstream's FailedMount does, one line per volume. A volume that already has its
// content keeps it when new content cannot be had (API server away, Secret deleted): a running pod goes on with what it knows.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) (map[string]string, error) {
	dir, err := m.podDir(p.UID)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare volumes: %w", err)
	}
	s := m.lock(p.UID)
	defer s.Unlock()
	if err := makeDir(dir, dirMode); err != nil {
		return nil, fmt.Errorf("cannot make the pod's directory: %w", err)
	}
	paths := make(map[string]string, len(p.Spec.Volumes))
	var errs []error
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		begin := m.clock.Now()
		path, err := m.prepareOne(ctx, s, p, v)
		if plugin := m.Plugin(p, v); m.told != nil && plugin != "" {
			m.told(plugin, m.clock.Since(begin), err)
		}
		if err != nil {
			// The words before the colon are those that users and tools look for in Events.
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err))
			continue
		}
		paths[v.Name] = path
	}
	return paths, errors.Join(errs...)
}

func (m *Manager) prepareOne(ctx context.Context, s *podState, p *v1.Pod, v *v1.Volume) (string, error) {
	if claim, _ := claimOf(p, v); claim != "" {
		return m.prepareClaim(ctx, p, v)
	}
	path, err := m.path(p, v)
	if err != nil {
		return "", err
	}
	switch {
	case v.Image != nil: // made when a container wants it: only a container can wait for an image
		return path, nil
	case v.HostPath != nil:
		return path, m.prepareHostPath(v.HostPath, path)
	case v.EmptyDir != nil:
		return path, m.prepareEmptyDir(p, v, path)
	default:
		return path, m.prepareContent(ctx, s, p, v, path)
	}
}

// Directory names of the kinds of volume below pods/<uid>/volumes, as upstream has them: tools look there.
const (
	emptyDirName    = "kubernetes.io~empty-dir"
	secretName      = "kubernetes.io~secret"
	configMapName   = "kubernetes.io~configmap"
	projectedName   = "kubernetes.io~projected"
	downwardAPIName = "kubernetes.io~downward-api"
	localName       = "kubernetes.io~local-volume" // only for marks: a local volume lies where it is
	hostPathName    = "kubernetes.io~host-path"    // for its name alone, as the next
	imageName       = "kubernetes.io~image"
)

// path is where volume v of p lies, or an error that says why there is no such place. That of an image volume is "": each container's
// start finds out. A claim must have been prepared.
func (m *Manager) path(p *v1.Pod, v *v1.Volume) (string, error) {
	if claim, _ := claimOf(p, v); claim != "" {
		b, known := m.backingFor(p.UID, v.Name)
		if !known {
			return "", fmt.Errorf("claim %q has not been prepared", claim)
		}
		return b.path, nil
	}
	switch s := v.VolumeSource; {
	case s.Image != nil:
		if m.mounts == nil || m.images.source == nil {
			return "", unsupported(v)
		}
		return "", nil
	case s.HostPath != nil:
		return hostPath(m.cfg.Platform, s.HostPath.Path)
	}
	kind := contentName(v)
	if kind == "" {
		return "", unsupported(v)
	}
	if err := checkElement(m.cfg.Platform, v.Name); err != nil {
		return "", fmt.Errorf("volume name: %w", err)
	}
	dir, err := m.podDir(p.UID)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "volumes", kind, v.Name), nil
}

// Plugin is upstream's name for the kind of a pod's volume, such as kubernetes.io/secret. "": a kind that this agent has not, or a claim of
// which it is not known yet what is behind it.
func (m *Manager) Plugin(p *v1.Pod, v *v1.Volume) string {
	name := ""
	switch {
	case v.PersistentVolumeClaim != nil || v.Ephemeral != nil:
		b, known := m.backingFor(p.UID, v.Name)
		switch {
		case known && b.hostPath != nil:
			name = hostPathName
		case known:
			name = localName
		}
	case v.Image != nil:
		name = imageName
	case v.HostPath != nil:
		name = hostPathName
	default:
		name = contentName(v)
	}
	return strings.Replace(name, "~", "/", 1)
}

// contentName is the directory of volumes like v, which have one of their own in the pod's; "": they have none.
func contentName(v *v1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return emptyDirName
	case v.Secret != nil:
		return secretName
	case v.ConfigMap != nil:
		return configMapName
	case v.Projected != nil:
		return projectedName
	case v.DownwardAPI != nil:
		return downwardAPIName
	}
	return ""
}

// unsupported is the error for a volume of a kind that this agent has not.
func unsupported(v *v1.Volume) error {
	return fmt.Errorf("volume kind %s is not supported by this node agent; "+
		"use emptyDir, hostPath, configMap, secret, projected, downwardAPI or persistentVolumeClaim", kindOf(v.VolumeSource))
}

// kindOf names the field that is set in a volume source.
func kindOf(source any) string {
	fields := map[string]json.RawMessage{}
	if b, err := json.Marshal(source); err != nil || json.Unmarshal(b, &fields) != nil || len(fields) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
}

// Due returns when Prepare should be called again for pod uid because a token of it wants renewal; the zero Time: never.
func (m *Manager) Due(uid types.UID) time.Time {
	m.mu.Lock()
	s := m.pods[uid]
	m.mu.Unlock()
	if s == nil {
		return time.Time{}
	}
	s.Lock()
	defer s.Unlock()
	var due time.Time
	for _, t := range s.tokens {
		if due.IsZero() || t.renew.Before(due) {
			due = t.renew
		}
	}
	return due
}

// Leftovers implements pod.Volumes.
func (m *Manager) Leftovers() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Root, "pods"))
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods' directories: %w", err)
	}
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// WriteFile implements pod.Volumes. name may have directories in it ("containers/web/0123abcd"), with forward slashes.
func (m *Manager) WriteFile(uid types.UID, name string, data []byte, mode uint32) (string, error) {
	dir, err := m.podDir(uid)
	if err == nil {
		err = checkRelative(m.cfg.Platform, name)
	}
	if err != nil {
		return "", fmt.Errorf("cannot write file %q: %w", name, err)
	}
	s := m.lock(uid)
	defer s.Unlock()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return "", fmt.Errorf("cannot make the directory of file %q: %w", name, err)
	}
	if err := m.rewrite(path, data, os.FileMode(mode)); err != nil {
		return "", fmt.Errorf("cannot write file %q: %w", name, err)
	}
	return path, nil
}

// MakeDir implements pod.Volumes.
func (m *Manager) MakeDir(uid types.UID, name string) (string, error) {
	dir, err := m.podDir(uid)
	if err == nil {
		err = checkRelative(m.cfg.Platform, name)
	}
	if err != nil {
		return "", fmt.Errorf("cannot make directory %q: %w", name, err)
	}
	s := m.lock(uid)
	defer s.Unlock()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := makeDir(path, 0o777); err != nil {
		return "", fmt.Errorf("cannot make directory %q: %w", name, err)
	}
	return path, m.protect(path, accessModify)
}

// KeepFiles implements pod.Volumes.
func (m *Manager) KeepFiles(uid types.UID, dir string, keep ...string) error {
	podDir, err := m.podDir(uid)
	if err == nil {
		err = checkRelative(m.cfg.Platform, dir)
	}
	if err != nil {
		return fmt.Errorf("cannot clear directory %q: %w", dir, err)
	}
	s := m.lock(uid)
	defer s.Unlock()
	entries, err := os.ReadDir(filepath.Join(podDir, filepath.FromSlash(dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			errs = append(errs, disk.RemoveAll(filepath.Join(podDir, filepath.FromSlash(dir), e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot clear directory %q: %w", dir, err)
	}
	return nil
}

// rewrite brings data into the file without exchanging the file: a bind mount shows one inode, not a name.
func (m *Manager) rewrite(path string, data []byte, mode os.FileMode) error {
	if fi, err := os.Lstat(path); err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is in the way: want a regular file, have %s", path, fi.Mode())
	}
	old, missing := os.ReadFile(path)
	if missing == nil && (data == nil || string(old) == string(data)) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return err
	}
	// What needs more room comes first: when the disk is full, the file stays as it was.
	both := min(len(old), len(data))
	if _, err = f.WriteAt(data[both:], int64(both)); err != nil {
		err = errors.Join(err, f.Truncate(int64(len(old))))
	} else if _, err = f.WriteAt(data[:both], 0); err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil && m.cfg.Platform.OS != "windows" {
		err = f.Chmod(mode)
	}
	err = errors.Join(err, f.Close())
	if err != nil && missing != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// makeDir makes dir with parents and gives it mode whatever the umask. An existing one is left as it is.
func makeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(dir), dirMode); err != nil {
		return err
	}
	err := os.Mkdir(dir, mode.Perm())
	if err == nil {
		return os.Chmod(dir, mode)
	}
	if fi, statErr := os.Lstat(dir); statErr == nil && fi.IsDir() {
		return nil
	}
	return err
}
