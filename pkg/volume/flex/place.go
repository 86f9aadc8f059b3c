package flex

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// tree is the agent's root directory (--root-dir). All paths below it are upstream's, so that a node can change between the two kubelets.
type tree string

const (
	podsDir    = "pods"
	volumesDir = "volumes"
	mountsDir  = "mounts"
)

// use is one volume of a pod on disk: its directory is made first and removed last.
type use struct {
	uid    types.UID
	driver string
	spec   string
}

// target returns where the driver mounts the volume for the pod.
func (t tree) target(u use) string {
	return filepath.Join(string(t), podsDir, string(u.uid), volumesDir, escape(u.driver), u.spec)
}

// device returns where the driver mounts an attached volume for the node.
func (t tree) device(u use) string {
	vendor, name, _ := strings.Cut(u.driver, "/")
	return t.drivers(vendor, name, mountsDir, u.spec)
}

// drivers is the directory of what drivers mount for the node, or one below it.
func (t tree) drivers(below ...string) string {
	return filepath.Join(append([]string{string(t), "plugins/kubernetes.io/flexvolume"}, below...)...)
}

// name returns the control plane's name of the volume.
func (u use) name() name { return name(u.key()) }

// key returns the key of the volume's turns.
func (u use) key() string { return u.driver + "/" + u.spec }

// uses lists the flexVolumes on disk, of one pod or with "" of all.
func (t tree) uses(platform pod.Platform, uid types.UID) (out []use, err error) {
	pods := []string{string(uid)}
	if uid == "" {
		if pods, err = dirs(filepath.Join(string(t), podsDir)); err != nil {
			return nil, err
		}
	}
	for _, p := range pods {
		dir := filepath.Join(string(t), podsDir, p, volumesDir)
		kinds, err := dirs(dir)
		if err != nil {
			return nil, err
		}
		for _, kind := range kinds {
			if checkName(platform, unescape(kind)) != nil {
				continue // of another kind, or no one's
			}
			specs, err := names(filepath.Join(dir, kind))
			if err != nil {
				return nil, err
			}
			for _, spec := range specs {
				out = append(out, use{types.UID(p), unescape(kind), spec})
			}
		}
	}
	return out, nil
}

// names returns the sorted entries of dir, none if dir does not exist.
func names(dir string) ([]string, error) { return list(dir, false) }

// dirs returns the directories in dir.
func dirs(dir string) ([]string, error) { return list(dir, true) }

func list(dir string, only bool) (out []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list flexVolumes: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || !only {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
