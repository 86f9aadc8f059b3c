package access

import (
	"fmt"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"
)

// FSGroup is the group that files of p's volumes get; nil when they keep theirs.
func (c *Control) FSGroup(p *v1.Pod) *int64 {
	if p.Spec.SecurityContext == nil || c.Platform.OS == "windows" {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

// Bits that a group needs: on files, and beside them on directories, where new files inherit the group.
const (
	groupReadWrite fs.FileMode = 0o660
	GroupRead      fs.FileMode = 0o440
	GroupDir                   = fs.ModeSetgid | 0o110
)

// SetGroup gives everything in the volume at dir to securityContext.fsGroup. With fsGroupChangePolicy OnRootMismatch it does nothing
// when the root already is as it should be; therefore the root comes last. It does not follow links. Without an fsGroup, and on Windows, it
// does nothing.
func (c *Control) SetGroup(dir string, sc *v1.PodSecurityContext, readOnly bool) error {
	if sc == nil || sc.FSGroup == nil || c.Platform.OS == "windows" {
		return nil
	}
	bits := groupReadWrite
	if readOnly {
		bits = GroupRead
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot open volume: %w", err)
	}
	defer root.Close()
	if sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch {
		fi, err := root.Lstat(".")
		if err != nil {
			return fmt.Errorf("cannot examine volume: %w", err)
		}
		want := bits | GroupDir
		if gid, known := GroupOf(fi); known && gid == *sc.FSGroup && fi.Mode()&want == want {
			return nil
		}
	}
	set := func(name string, mode fs.FileMode) error {
		if err := root.Lchown(name, -1, int(*sc.FSGroup)); err != nil || mode&fs.ModeSymlink != 0 {
			return err
		}
		want := mode.Perm() | mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) | bits
		if mode.IsDir() {
			want |= GroupDir
		}
		return root.Chmod(name, want)
	}
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		return set(name, fi.Mode())
	})
	if err == nil {
		var fi fs.FileInfo
		if fi, err = root.Stat("."); err == nil {
			err = set(".", fi.Mode())
		}
	}
	if err != nil {
		return fmt.Errorf("cannot give the volume to group %d: %w", *sc.FSGroup, err)
	}
	return nil
}
