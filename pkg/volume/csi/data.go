package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/volume/paths"
)

// dataFile is upstream's record of a volume. It has the same fields here, so that either kubelet finds the volumes of the other.
const dataFile = "vol_data.json"

// data is the content of dataFile. The node's record of a volume has only DriverName, Handle and SELinux.
type data struct {
	SpecVolID    string `json:"specVolID,omitempty"`
	Handle       string `json:"volumeHandle"`
	DriverName   string `json:"driverName"`
	NodeName     string `json:"nodeName,omitempty"`
	AttachmentID string `json:"attachmentID,omitempty"`
	Lifecycle    string `json:"volumeLifecycleMode,omitempty"`
	SELinux      string `json:"seLinuxMountContext,omitempty"`
}

func (d data) key() key { return key{d.DriverName, d.Handle} }

// readData reads the record in dir; the error is fs.ErrNotExist when there is none.
func readData(dir string) (data, error) {
	path := filepath.Join(dir, dataFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return data{}, fmt.Errorf("cannot read the record of a CSI volume: %w", err)
	}
	var d data
	if err := json.Unmarshal(b, &d); err != nil {
		return data{}, fmt.Errorf("%s: failed to parse volume data file [%s]: %w", pluginName, path, err)
	}
	if d.DriverName == "" || d.Handle == "" {
		return data{}, fmt.Errorf("%s: failed to parse volume data file [%s]: want driverName and volumeHandle in it", pluginName, path)
	}
	return d, nil
}

// unfinished begins the names of files that writeData has not renamed yet.
const unfinished = ".vol_data-"

// writeData writes the record in dir, which it makes. It is there as a whole or not at all, whatever happens meanwhile.
func writeData(dir string, d data) error {
	b, err := json.Marshal(d)
	if err == nil {
		err = os.MkdirAll(dir, paths.DirMode)
	}
	if err != nil {
		return fmt.Errorf("cannot record a CSI volume: %w", err)
	}
	if err := paths.Replace(filepath.Join(dir, dataFile), filepath.Join(dir, unfinished), append(b, '\n')); err != nil {
		return fmt.Errorf("cannot record a CSI volume: %w", err)
	}
	return nil
}

// place is where one volume of a pod lies, at upstream's paths.
type place struct {
	target  string // given to NodePublish
	staging string // given to NodeStage
	podDir  string // has the pod's record
	link    string // the pod's record of a block device, a link to target; "": a file system
	nodeDir string // has the node's record
}

const (
	podsDir    = "pods"
	kindDir    = "kubernetes.io~csi"
	pluginsDir = "plugins/kubernetes.io/csi"
	devicesDir = "volumeDevices"
)

// deviceDirs are the directories of upstream's layout in devicesDir that lie beside those of the PersistentVolumes.
var deviceDirs = []string{"staging", "publish"}

// tree is the agent's root directory (--root-dir).
type tree string

func (t tree) join(elements ...string) string {
	return filepath.Join(append([]string{string(t)}, elements...)...)
}

// at is the place of a volume for a pod. It is pure.
func (t tree) at(uid types.UID, k key, spec string, block bool) place {
	if block {
		devices := t.join(pluginsDir, devicesDir)
		return place{
			target: filepath.Join(devices, "publish", spec, string(uid)), staging: filepath.Join(devices, "staging", spec),
			link: t.join(podsDir, string(uid), devicesDir, kindDir, spec), nodeDir: filepath.Join(devices, spec, "data"),
		}
	}
	podDir := t.join(podsDir, string(uid), "volumes", kindDir, spec)
	node := t.join(pluginsDir, k.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(k.handle))))
	return place{target: filepath.Join(podDir, "mount"), staging: filepath.Join(node, "globalmount"), podDir: podDir, nodeDir: node}
}

// hasRecord says whether the pod has a record of the volume. It does not look at what a link leads to.
func (p place) hasRecord() bool {
	record := p.link
	if record == "" {
		record = filepath.Join(p.podDir, dataFile)
	}
	_, err := os.Lstat(record)
	return err == nil
}

// user is a pod that uses a volume according to the disk.
type user struct {
	uid   types.UID
	spec  string
	block bool
	data  data
	err   error // its record cannot be read
}

// undone reports that only the link of the pod's device is left: the device's record is written before the link, and deleted when nothing is
// published or staged any more.
func (u user) undone() bool { return u.block && errors.Is(u.err, fs.ErrNotExist) }

// users lists what all pods have on disk, in order of their UIDs.
func (t tree) users() ([]user, error) {
	pods, err := names(t.join(podsDir))
	var out []user
	for _, uid := range pods {
		of, wrong := t.usersOf(types.UID(uid))
		out, err = append(out, of...), errors.Join(err, wrong)
	}
	return out, err
}

// usersOf lists what one pod has on disk. A directory without a record is not ours: records are written first and deleted last.
func (t tree) usersOf(uid types.UID) (out []user, err error) {
	dir := t.join(podsDir, string(uid), "volumes", kindDir)
	volumes, err := names(dir)
	for _, spec := range volumes {
		d, wrong := readData(filepath.Join(dir, spec))
		if !errors.Is(wrong, fs.ErrNotExist) {
			out = append(out, user{uid: uid, spec: spec, data: d, err: wrong})
		}
	}
	devices, more := names(t.join(podsDir, string(uid), devicesDir, kindDir))
	for _, spec := range devices {
		d, wrong := readData(t.join(pluginsDir, devicesDir, spec, "data"))
		out = append(out, user{uid: uid, spec: spec, block: true, data: d, err: wrong})
	}
	return out, errors.Join(err, more)
}

// uses reports whether the pod has a record of the volume under that name.
func (t tree) uses(uid types.UID, k key, spec string, block bool) (bool, error) {
	of, err := t.usersOf(uid)
	uses := slices.ContainsFunc(of, func(u user) bool { return u.err == nil && u.data.key() == k && u.spec == spec && u.block == block })
	if uses {
		err = nil // of another volume
	}
	return uses, err
}

// others returns the pods other than uid that use the volume, or may: their record cannot be read.
func others(all []user, uid types.UID, k key, spec string) (out []string) {
	for _, u := range all {
		if u.uid != uid && (u.err == nil && u.data.key() == k || u.err != nil && !u.undone() && u.spec == spec) {
			out = append(out, string(u.uid))
		}
	}
	return slices.Compact(out)
}

// twin reports whether the pod of u has the same volume under another name, such as an inline disk that is a PersistentVolume too. Devices of different
// names are staged apart.
func twin(all []user, u user) bool {
	return !u.block && slices.ContainsFunc(all, func(o user) bool {
		return o.uid == u.uid && o.spec != u.spec && !o.block && o.err == nil && o.data.key() == u.data.key()
	})
}

// staged lists the volumes with a record of the node: file systems by their driver and hash, devices by their PersistentVolume. A record that
// is not where it should be is an error, and left alone.
func (t tree) staged() (out []stagedVolume, err error) {
	drivers, err := names(t.join(pluginsDir))
	for _, driver := range drivers {
		if driver == devicesDir {
			continue
		}
		hashes, wrong := names(t.join(pluginsDir, driver))
		err = errors.Join(err, wrong)
		for _, hash := range hashes {
			dir := t.join(pluginsDir, driver, hash)
			d, wrong := readData(dir)
			switch {
			case errors.Is(wrong, fs.ErrNotExist):
				continue
			case wrong == nil && t.at("", d.key(), "", false).nodeDir != dir:
				wrong = fmt.Errorf("%s names volume %s of driver %s, which does not belong there", filepath.Join(dir, dataFile), d.Handle, d.DriverName)
			}
			if err = errors.Join(err, wrong); wrong == nil {
				out = append(out, stagedVolume{data: d})
			}
		}
	}
	specs, wrong := names(t.join(pluginsDir, devicesDir))
	err = errors.Join(err, wrong)
	for _, spec := range specs {
		if slices.Contains(deviceDirs, spec) {
			continue
		}
		d, wrong := readData(t.join(pluginsDir, devicesDir, spec, "data"))
		if wrong == nil {
			out = append(out, stagedVolume{data: d, spec: spec, block: true})
		} else if !errors.Is(wrong, fs.ErrNotExist) {
			err = errors.Join(err, wrong)
		}
	}
	return out, err
}

// sweep removes what writeData has left in the node's directories when a kill ended it: otherwise they could not be removed with their volumes. What it
// has left in a pod's directory goes with that. No record may be written meanwhile.
func (t tree) sweep() error {
	drivers, err := names(t.join(pluginsDir))
	for _, driver := range drivers {
		volumes, wrong := names(t.join(pluginsDir, driver))
		err = errors.Join(err, wrong)
		for _, volume := range volumes {
			dir := t.join(pluginsDir, driver, volume)
			if driver == devicesDir {
				if slices.Contains(deviceDirs, volume) {
					continue
				}
				dir = filepath.Join(dir, "data")
			}
			entries, wrong := os.ReadDir(dir)
			if !errors.Is(wrong, fs.ErrNotExist) {
				err = errors.Join(err, wrong)
			}
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), unfinished) {
					err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
				}
			}
		}
	}
	return err
}

// stagedVolume is a volume with a record of the node.
type stagedVolume struct {
	data  data
	spec  string // of a device
	block bool
}

func names(dir string) ([]string, error) {
	out, err := paths.Names(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list CSI volumes: %w", err)
	}
	return out, nil
}
