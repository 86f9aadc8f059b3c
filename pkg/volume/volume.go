// Package volume is the arrow from a pod's spec to directories on this host (kubelet): it implements pod.Volumes.
//
//	pod.Prepare -> claim -> Kind.Prepare -> RootDir/pods/<uid>/volumes/...
//	pod.Mounts  -> Kind.Mount -> subpath -> one container's mounts
//	pod.Clean   -> Kind.Clean -> unmounts and deletes RootDir/pods/<uid>, never what lies behind a mount or a hostPath
//
// The Manager walks over a pod's volumes; what one volume is, its Kind knows. The kinds of this agent are in package kinds, one in a file.
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/subpath"
)

// Parts are what a Manager works with.
type Parts struct {
	Claims Claims
	Kinds  []Kind
	Clock  clock.PassiveClock
	// Prepared is called with how long it took to make a volume of that plugin ready, or why it could not be.
	Prepared func(plugin string, took time.Duration, err error)
}

// Manager owns the pods' directories. Calls for different pods run at the same time, those for one pod one after the other.
type Manager struct {
	host     Host
	kinds    []tableRow
	claims   claims
	subPaths subpath.Maker
	clock    clock.PassiveClock
	prepared func(plugin string, took time.Duration, err error)

	mu   sync.Mutex
	pods map[types.UID]*sync.Mutex
}

// tableRow is a kind with the name of its directories.
type tableRow struct {
	Kind
	dir string
}

// hasDir says whether the directory pods/<uid>/volumes/name is of the kind.
func (r tableRow) hasDir(name string) bool {
	if k, ok := r.Kind.(DirKind); ok {
		return k.HasDir(name)
	}
	return name == r.dir
}

var _ pod.Volumes = (*Manager)(nil)

// New makes host.Root/pods and returns its Manager.
func New(host Host, parts Parts) (*Manager, error) {
	if err := paths.MakeDir(filepath.Join(host.Root, podsName), paths.DirMode); err != nil {
		return nil, fmt.Errorf("cannot make the pods' directory: %w", err)
	}
	table := make([]tableRow, len(parts.Kinds))
	for i, k := range parts.Kinds {
		table[i] = tableRow{k, dirOf(k.Name())}
	}
	return &Manager{
		host: host, kinds: table, claims: claims{api: parts.Claims, bound: map[types.UID]map[string]*v1.PersistentVolume{}},
		subPaths: subpath.Maker{Platform: host.Platform, Mounts: host.Mounts, Access: host.Access},
		clock:    parts.Clock, prepared: parts.Prepared, pods: map[types.UID]*sync.Mutex{},
	}, nil
}

// lock locks pod uid; the caller unlocks it.
func (m *Manager) lock(uid types.UID) *sync.Mutex {
	m.mu.Lock()
	l := m.pods[uid]
	if l == nil {
		l = &sync.Mutex{}
		m.pods[uid] = l
	}
	m.mu.Unlock()
	l.Lock()
	return l
}

// podDir is the directory of one pod.
func (m *Manager) podDir(uid types.UID) (string, error) {
	if err := paths.CheckElement(m.host.Platform, string(uid)); err != nil {
		return "", fmt.Errorf("metadata.uid: %w", err)
	}
	return filepath.Join(m.host.Root, podsName, string(uid)), nil
}

// Prepare implements pod.Volumes. The error reads as upstream's FailedMount does, one line per volume.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) (map[string]string, error) {
	dir, err := m.podDir(p.UID)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare volumes: %w", err)
	}
	defer m.lock(p.UID).Unlock()
	if err := paths.MakeDir(dir, paths.DirMode); err != nil {
		return nil, fmt.Errorf("cannot make the pod's directory: %w", err)
	}
	out := make(map[string]string, len(p.Spec.Volumes))
	var errs []error
	for i := range p.Spec.Volumes {
		spec := &p.Spec.Volumes[i]
		begin := m.clock.Now()
		path, err := m.prepareOne(ctx, p, spec)
		if plugin := m.Plugin(p, spec); plugin != "" {
			m.prepared(plugin, m.clock.Since(begin), err)
		}
		if err != nil {
			// The words before the colon are those that users and tools look for in Events.
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", spec.Name, err))
			continue
		}
		out[spec.Name] = path
	}
	return out, errors.Join(errs...)
}

func (m *Manager) prepareOne(ctx context.Context, p *v1.Pod, spec *v1.Volume) (string, error) {
	v := m.see(p, spec)
	known := v.PV != nil
	if v.Claim != "" && !known {
		var err error
		if v.PV, err = m.claims.read(ctx, v); err == nil {
			err = m.checkMode(v)
		}
		if err != nil {
			return "", fmt.Errorf("error processing PVC %s/%s: %w", p.Namespace, v.Claim, err)
		}
	}
	kind, ok := m.kindOf(&v)
	if !ok {
		return "", m.unsupported(v)
	}
	path, err := kind.Prepare(ctx, v)
	if err == nil && v.Claim != "" && !known {
		m.claims.keep(v)
	}
	return path, err
}

// see is a volume of p, with what is known of its claim.
func (m *Manager) see(p *v1.Pod, spec *v1.Volume) Volume {
	v := Volume{Pod: p, Spec: spec, platform: m.host.Platform, root: m.host.Root}
	if v.Claim, v.ReadOnly = claimOf(p, spec); v.Claim != "" {
		v.PV = m.claims.known(p.UID, spec.Name)
	}
	return v
}

// kindOf finds the kind of v, whose claim must be known, and notes it in v.
func (m *Manager) kindOf(v *Volume) (Kind, bool) {
	if v.Claim != "" && v.PV == nil {
		return nil, false
	}
	i := slices.IndexFunc(m.kinds, func(r tableRow) bool { return r.Has(*v) })
	if i < 0 {
		return nil, false
	}
	v.kindDir = m.kinds[i].dir
	return m.kinds[i].Kind, true
}

// find is the volume of p called name, and its kind.
func (m *Manager) find(p *v1.Pod, name string) (Kind, Volume, error) {
	i := slices.IndexFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil, Volume{}, errors.New("spec.volumes has no volume of that name")
	}
	v := m.see(p, &p.Spec.Volumes[i])
	kind, ok := m.kindOf(&v)
	if !ok {
		return nil, v, m.unsupported(v)
	}
	return kind, v, nil
}

// Plugin is upstream's name for the kind of a pod's volume, such as kubernetes.io/secret. "": a kind that this agent does not have, or a claim
// that no Prepare has resolved yet.
func (m *Manager) Plugin(p *v1.Pod, spec *v1.Volume) string {
	v := m.see(p, spec)
	if kind, ok := m.kindOf(&v); ok {
		return kind.Name()
	}
	return ""
}

// Leftovers implements pod.Volumes.
func (m *Manager) Leftovers() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.host.Root, podsName))
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

// Dir is the directory of one pod; "": it cannot have one.
func (m *Manager) Dir(uid types.UID) string {
	dir, err := m.podDir(uid)
	if err != nil {
		return ""
	}
	return dir
}
