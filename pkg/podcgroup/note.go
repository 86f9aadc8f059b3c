package podcgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/disk"
)

// NoteFile notes where the pods' cgroups are, so that a host that leaves the cluster gets rid of them after its kubelet and its flags are gone. "":
// nothing is noted.
type NoteFile string

// NoteFileIn is the file in the kubelet's directory.
func NoteFileIn(rootDir string) NoteFile { return NoteFile(filepath.Join(rootDir, "cgroups.json")) }

// note is the file's content.
type note struct {
	Root    string `json:"root"` // cgroup.Config's
	Systemd bool   `json:"systemd,omitempty"`
}

// write replaces the note.
func (f NoteFile) write(cfg cgroup.Config) error {
	if f == "" {
		return nil
	}
	if err := disk.WriteNote(string(f), note{Root: cfg.Root, Systemd: cfg.Systemd}); err != nil {
		return fmt.Errorf("cannot note where pods' cgroups are: %w", err)
	}
	return nil
}

// Undo removes the cgroups of all pods and then the note, and returns the name of what it removed, "" for nothing. It kills nothing: cgroups in which
// processes run are an error, which keeps the note for another try.
func (f NoteFile) Undo(ctx context.Context) (removed string, err error) {
	return f.undo(ctx, cgroup.Open)
}

func (f NoteFile) undo(ctx context.Context, open func(cgroup.Config) (*cgroup.Tree, error)) (removed string, err error) {
	n, err := disk.ReadNote[*note](string(f), "remove it, and the cgroup "+nodeGroup+" with rmdir")
	if err != nil {
		return "", fmt.Errorf("cannot read where pods' cgroups are: %w", err)
	}
	if n == nil {
		return "", nil
	}
	tree, err := open(cgroup.Config{Root: n.Root, Systemd: n.Systemd})
	if err != nil {
		return "", err
	}
	all := cgroup.Group{nodeGroup}
	if tree.Has(all) {
		removed = tree.Parent(all)
	}
	if err := tree.Remove(ctx, all); err != nil {
		return "", err
	}
	return removed, os.Remove(string(f))
}
