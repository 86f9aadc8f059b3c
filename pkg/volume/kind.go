package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/links"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// Kind is one kind of volume, such as emptyDir or nfs. Calls for one pod come one after the other, except for Has and Usage, which may come at
// any time; calls for different pods are concurrent. A Kind may keep what it likes in memory, but must do without after a restart of the agent.
//
// A Kind whose volumes are staged once per node, whatever the number of pods, counts the pods itself, on disk below Host.Root.
type Kind interface {
	// Name is upstream's name of the plugin, such as "kubernetes.io/nfs". It is constant; directories and metrics have it.
	Name() string
	// Has says whether v is of this kind. It looks at v.Spec and v.PV alone, whose sources may be empty.
	Has(v Volume) bool
	// Prepare makes v ready for containers and returns its path on this host, "" where only Mount can tell. It is called before each container
	// start, and again when an object that the pod uses has changed: it brings the content up to date, repairs what was half made, and leaves
	// alone what is as it should be. It may block until ctx ends. The error becomes the FailedMount Event of the pod.
	Prepare(ctx context.Context, v Volume) (path string, err error)
	// Mount says what a container gets that mounts v. Prepare has succeeded before, maybe in a former life of the agent. It may block until ctx
	// ends.
	Mount(ctx context.Context, v Volume) (Mount, error)
	// Usage says where v lies for those who measure what the pod uses; false when it does not count as the pod's. The Kind fills in Path, Own,
	// EmptyDir and Memory. It does not wait: what lies on a server may hang.
	Usage(v Volume) (disk.Place, bool, error)
	// Clean undoes what Prepare and Mount did for a pod that has no container left. It works from what lies on disk: the API object may be gone,
	// and the agent may have been killed at any step. Idempotent; an error means "try again later". Afterwards everything mounted in the pod's
	// directory is unmounted and the directory is deleted, so that a Kind that keeps everything there has nothing to do.
	Clean(ctx context.Context, left Remains) error
}

// BlockKind is a Kind that has block devices, too (volumeMode Block). Kinds without it refuse such volumes.
type BlockKind interface {
	Kind
	// Device is the path of the block device behind v, which Prepare has made ready.
	Device(v Volume) (string, error)
}

// DirKind is a Kind whose volumes lie below pods/<uid>/volumes in other directories than that of its name.
type DirKind interface {
	Kind
	// HasDir says whether the directory pods/<uid>/volumes/name is of this kind.
	HasDir(name string) bool
}

// Volume is one volume of a pod, as its Kind sees it.
type Volume struct {
	Pod *v1.Pod
	// Spec is the volume in the pod's spec: its source is that of the Kind, or a claim.
	Spec *v1.Volume
	// PV is what the claim is bound to; nil: there is no claim.
	PV *v1.PersistentVolume
	// Claim is the name of the PersistentVolumeClaim, in the pod's namespace; "": there is none.
	Claim string
	// ReadOnly says that no container may write, because the pod uses the claim so. The Manager sees to that in mounts and devices.
	ReadOnly bool

	platform pod.Platform
	root     string // of the agent
	kindDir  string
}

// Block says whether v is a block device (volumeMode Block) and no file system.
func (v Volume) Block() bool {
	return v.PV != nil && v.PV.Spec.VolumeMode != nil && *v.PV.Spec.VolumeMode == v1.PersistentVolumeBlock
}

// Dir is v's own directory, pods/<uid>/volumes/<kind>/<name> as upstream has it: tools look there. It may be missing.
func (v Volume) Dir() (string, error) {
	if err := paths.CheckElement(v.platform, v.Spec.Name); err != nil {
		return "", fmt.Errorf("volume name: %w", err)
	}
	return filepath.Join(v.root, podsName, string(v.Pod.UID), volumesName, v.kindDir, v.Spec.Name), nil
}

// Made says whether SetMade was called for v, in this life of the agent or a former one.
func (v Volume) Made() (bool, error) {
	mark, err := v.mark()
	return err == nil && paths.Exists(mark), err
}

// MadeWith returns what SetMadeWith noted for v; false: it was not called.
func (v Volume) MadeWith() (note string, made bool, err error) {
	mark, err := v.mark()
	if err != nil {
		return "", false, err
	}
	b, err := os.ReadFile(mark)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return string(b), err == nil, err
}

// SetMade notes on disk that v was made and belongs to the pod from now on.
func (v Volume) SetMade() error { return v.SetMadeWith("") }

// SetMadeWith is SetMade with a note for MadeWith.
func (v Volume) SetMadeWith(note string) error {
	mark, err := v.mark()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(mark), paths.DirMode); err != nil {
		return fmt.Errorf("cannot make directory: %w", err)
	}
	if err := os.WriteFile(mark, []byte(note), 0o640); err != nil {
		return fmt.Errorf("cannot mark the volume as ready: %w", err)
	}
	return nil
}

func (v Volume) mark() (string, error) {
	if err := paths.CheckElement(v.platform, v.Spec.Name); err != nil {
		return "", err
	}
	return filepath.Join(v.root, podsName, string(v.Pod.UID), notesName, v.kindDir, v.Spec.Name, "ready"), nil
}

// Mount is what a container gets of a volume.
type Mount struct {
	Path     string // on this host
	ReadOnly bool   // no container may write to it
	Sealed   bool   // the agent makes nothing in it: a missing subPath is an error
	// Linked: on Windows a driver may have made Path a link, and the container gets what it leads to.
	Linked bool
	// Confine says why a container must not get that end of the links; nil: it may get any.
	Confine func(end links.End) error
}

// Remains is what a pod left on disk.
type Remains struct {
	UID types.UID
	dir string
}

// Left is one volume of a pod that was prepared.
type Left struct {
	Name string // in the pod's spec
	Dir  string // as Volume.Dir; it may be missing
}

// Volumes lists those of the Kind with that name that have a directory or a mark, in order of their names.
func (r Remains) Volumes(kind string) ([]Left, error) {
	var out []Left
	for _, where := range []string{volumesName, notesName} {
		entries, err := os.ReadDir(filepath.Join(r.dir, where, dirOf(kind)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot list what the pod has of %s: %w", kind, err)
		}
		for _, e := range entries {
			out = append(out, Left{Name: e.Name(), Dir: filepath.Join(r.dir, volumesName, dirOf(kind), e.Name())})
		}
	}
	slices.SortFunc(out, func(a, b Left) int { return strings.Compare(a.Name, b.Name) })
	return slices.Compact(out), nil
}

// Directories: of pods below the root, of volumes and of marks below pods/<uid>.
const (
	podsName    = "pods"
	volumesName = "volumes"
	notesName   = "plugins"
)

// dirOf is the directory name of a kind, as upstream has it.
func dirOf(kind string) string { return strings.Replace(kind, "/", "~", 1) }
