package san

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/volume/paths"
)

// record is a disk on this node, and the content of its file. It has no secrets.
type record struct {
	Unique   string   `json:"unique"` // the control plane's name, without that of the plugin
	Place    string   `json:"place"`  // the disk's directory in upstream's layout, below that of the plugin
	Spec     string   `json:"spec"`   // name of the volume that first used it
	Block    bool     `json:"block,omitempty"`
	ReadOnly bool     `json:"readOnly,omitempty"`
	FSType   string   `json:"fsType,omitempty"`
	Options  []string `json:"mountOptions,omitempty"`

	Portals   []string `json:"portals,omitempty"` // address:port
	IQN       string   `json:"iqn,omitempty"`
	LUN       int      `json:"lun"`
	Iface     string   `json:"iface,omitempty"`
	From      string   `json:"initialIface,omitempty"`
	Initiator string   `json:"initiatorName,omitempty"`
	WWNs      []string `json:"wwns,omitempty"`
	WWIDs     []string `json:"wwids,omitempty"`

	// Ours are the portals to which this agent has logged in, for any of its disks.
	Ours []string `json:"ours,omitempty"`
	// Finds are the portals whose records of a discovery are ours, and may be left with a secret when the agent is killed.
	Finds []string `json:"finds,omitempty"`
	// Begun says that a file system was being made.
	Begun bool `json:"formatting,omitempty"`
	// Adopted says that upstream's kubelet has made the disk.
	Adopted bool `json:"adopted,omitempty"`
}

// key names the disk on this node.
func (r *record) key() string { return fmt.Sprintf("%.16x", sha256.Sum256([]byte(r.Place))) }

// describes says whether both describe the same disk in the same way, whatever was done for it.
func (r record) describes(other record) bool {
	for _, x := range []*record{&r, &other} {
		x.Ours, x.Finds, x.Begun, x.Spec = nil, nil, false, ""
	}
	return reflect.DeepEqual(r, other)
}

// sameTarget says whether both are reached by the same sessions.
func (r *record) sameTarget(other *record) bool {
	return r.IQN != "" && r.IQN == other.IQN && r.Iface == other.Iface
}

// sameDisk says whether both are, or may be, the same disk of the storage.
func (r *record) sameDisk(other *record) bool {
	overlaps := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
	}
	switch {
	case r.IQN != "":
		return r.IQN == other.IQN && r.LUN == other.LUN
	case len(r.WWNs) > 0:
		return r.LUN == other.LUN && overlaps(r.WWNs, other.WWNs)
	}
	return overlaps(r.WWIDs, other.WWIDs)
}

// own adds sessions to those that are ours, as far as the disk uses them.
func (r *record) own(portals []string) {
	for _, p := range portals {
		if slices.Contains(r.Portals, p) && !slices.Contains(r.Ours, p) {
			r.Ours = append(r.Ours, p)
		}
	}
}

// use is one volume of a pod, on disk.
type use struct {
	uid  types.UID
	spec string // name of its directory: the PersistentVolume's, or inline the volume's in the pod's spec
	key  string // of its disk; "": unknown, because upstream's kubelet has made it
}

const (
	podsDir    = "pods"
	recordsDir = "records"
	devicesDir = "volumeDevices"
	useFile    = "disk" // in a pod's directory: the key of the volume's disk
)

// tree is the agent's root directory for one kind. All paths but records are upstream's.
type tree struct {
	root string
	base string // the plugin's directory
	kind string // name of the kind's directories in those of pods
}

func newTree(root, plugin string) tree {
	return tree{root: root, base: join(root, "plugins", plugin), kind: strings.Replace(plugin, "/", "~", 1)}
}

// node is where a disk is mounted for the node, or where upstream's kubelet keeps a device.
func (t tree) node(r *record) string { return join(t.base, r.Place) }

// target is where a pod has the mounted disk.
func (t tree) target(u use) string {
	return join(t.root, podsDir, string(u.uid), "volumes", t.kind, u.spec)
}

// link is where a pod has a device.
func (t tree) link(u use) string {
	return join(t.root, podsDir, string(u.uid), devicesDir, t.kind, u.spec)
}

func (t tree) useFile(u use) string {
	return join(t.root, podsDir, string(u.uid), "plugins", t.kind, u.spec, useFile)
}

func (t tree) file(key string) string { return join(t.base, recordsDir, key+".json") }

// record reads the record of a disk; the error is fs.ErrNotExist when there is none.
func (t tree) record(key string) (record, error) {
	b, err := os.ReadFile(t.file(key))
	if err != nil {
		return record{}, fmt.Errorf("cannot read the record of a disk: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("%s: cannot read the record of a disk: %w", t.file(key), err)
	}
	if r.key() != key || !filepath.IsLocal(r.Place) {
		return record{}, fmt.Errorf("%s: it has the record of another disk, %q", t.file(key), r.Place)
	}
	return r, nil
}

// records lists the disks of this node. Those that cannot be read are the error.
func (t tree) records() (out []record, err error) {
	files, err := names(join(t.base, recordsDir))
	errs := []error{err}
	for _, file := range files {
		key, ok := strings.CutSuffix(file, ".json")
		if !ok {
			continue
		}
		r, err := t.record(key)
		if err == nil {
			out = append(out, r)
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// write writes the record, which is there as a whole or not at all.
func (t tree) write(r *record) error {
	b, err := json.Marshal(r)
	if err == nil {
		err = replace(t.file(r.key()), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot record a disk: %w", err)
	}
	return nil
}

// unfinished begins the names of files that are not renamed yet.
const unfinished = ".winkube-"

// replace replaces a file as a whole, readable by root alone. It makes the file's directory.
func replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), paths.DirMode); err != nil {
		return err
	}
	return paths.Replace(path, join(filepath.Dir(path), unfinished), data)
}

// removeUnfinished removes what a killed agent has not finished writing in a directory.
func removeUnfinished(dir string) error {
	found, err := filepath.Glob(join(dir, unfinished+"*"))
	for _, file := range found {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// writeUse notes that a pod uses a disk.
func (t tree) writeUse(u use) error {
	if err := replace(t.useFile(u), []byte(u.key)); err != nil {
		return fmt.Errorf("cannot record that a pod uses a disk: %w", err)
	}
	return nil
}

// forgetUse is the end of writeUse.
func (t tree) forgetUse(u use) error {
	if err := os.Remove(t.useFile(u)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot delete the record that a pod uses a disk: %w", err)
	}
	return nil
}

// uses lists which pods use which disks.
func (t tree) uses() (out []use, err error) {
	pods, err := names(join(t.root, podsDir))
	if err != nil {
		return nil, err
	}
	for _, uid := range pods {
		of, err := t.usesOf(types.UID(uid))
		if err != nil {
			return nil, err
		}
		out = append(out, of...)
	}
	return out, nil
}

// usesOf lists which disks one pod uses: those with a record, and those with a directory or a device alone.
func (t tree) usesOf(uid types.UID) (out []use, err error) {
	pod := join(t.root, podsDir, string(uid))
	for _, dir := range []string{"plugins", "volumes", devicesDir} {
		specs, err := names(join(pod, dir, t.kind))
		if err != nil {
			return nil, err
		}
		for _, spec := range specs {
			u := use{uid: uid, spec: spec}
			if slices.ContainsFunc(out, func(o use) bool { return o.spec == spec }) {
				continue
			}
			key, err := os.ReadFile(t.useFile(u))
			switch {
			case err == nil:
				u.key = string(key)
			case !errors.Is(err, fs.ErrNotExist):
				return nil, fmt.Errorf("cannot read which disk a pod uses: %w", err)
			case dir == "plugins":
				continue // it only has been marked as made
			}
			out = append(out, u)
		}
	}
	return out, nil
}

// adoptAll writes records of disks that upstream's kubelet has left, which adopt recognizes by their places.
func (t tree) adoptAll(adopt func(place string) (record, bool)) error {
	var errs []error
	for _, pattern := range []string{"*", "*/*", "*/*/*"} {
		found, err := filepath.Glob(join(t.base, pattern))
		errs = append(errs, err)
		for _, dir := range found {
			place, err := filepath.Rel(t.base, dir)
			if fi, wrong := os.Lstat(dir); err != nil || wrong != nil || !fi.IsDir() || strings.HasPrefix(place, recordsDir) {
				continue
			}
			r, ok := adopt(place)
			if !ok {
				continue
			}
			if _, err := t.record(r.key()); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			klog.InfoS("Found a disk that has no record; it is released when no pod uses it", "disk", r.Unique, "path", dir)
			r.Adopted = true
			errs = append(errs, t.write(&r))
		}
	}
	return errors.Join(errs...)
}

// forget deletes a disk's directory, if it is empty but for files of ours, and then its record.
func (t tree) forget(r *record) error {
	dir := t.node(r)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the directory of a disk: %w", err)
	}
	for _, e := range entries {
		if e.Name() == upstreamFile || r.Block && !e.IsDir() {
			if err := os.Remove(join(dir, e.Name())); err != nil {
				return fmt.Errorf("cannot empty the directory of a disk: %w", err)
			}
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if d == t.base {
			break
		}
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.V(2).InfoS("Leaving a directory of a disk where it is", "path", d, "err", err)
		}
	}
	if err := os.Remove(t.file(r.key())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot delete the record of a disk: %w", err)
	}
	return nil
}

func names(dir string) ([]string, error) {
	out, err := paths.Names(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list volumes: %w", err)
	}
	return out, nil
}
