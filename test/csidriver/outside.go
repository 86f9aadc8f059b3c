package csidriver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Outside is a driver's --data as a test beside the driver uses it, whether the driver runs or not.
type Outside struct{ Data string }

// Make makes a volume, as CreateVolume would, and returns its id (volumeHandle).
func (o Outside) Make(name string, size int64) (id string, err error) {
	id = idOf(name)
	return id, (&store{o.Data}).put(volumes, thing{ID: id, Name: name, Size: size}, "")
}

// Resize changes the size of a volume, as ControllerExpandVolume would.
func (o Outside) Resize(id string, size int64) error {
	s := &store{o.Data}
	t, ok, err := s.get(volumes, id)
	if err != nil || !ok {
		return errors.Join(err, &fs.PathError{Op: "resize", Path: id, Err: fs.ErrNotExist})
	}
	t.Size = size
	return s.put(volumes, t, "")
}

// Content is the directory of a volume's files.
func (o Outside) Content(id string) string { return (&store{o.Data}).content(volumes, id) }

// Volumes are the ids of all volumes, inline ones too.
func (o Outside) Volumes() ([]string, error) {
	all, err := (&store{o.Data}).all(volumes)
	ids := []string{}
	for _, t := range all {
		ids = append(ids, t.ID)
	}
	return ids, err
}

// SetAbnormal has NodeGetVolumeStats report a volume as abnormal; "": no longer.
func (o Outside) SetAbnormal(id, message string) error {
	return o.set(filepath.Join(volumes, id, "abnormal"), message)
}

// Fail has each call of a method fail with a message; "": no longer.
func (o Outside) Fail(method, message string) error { return o.set("fail-"+method, message) }

// Hang has each call of a method wait until Resume or its deadline.
func (o Outside) Hang(method string) error { return o.set("hang-"+method, "hang") }

// Linger has each call of a method do its work and then wait, without an answer, until Resume or its deadline.
func (o Outside) Linger(method string) error { return o.set("linger-"+method, "linger") }

// Resume ends Hang and Linger.
func (o Outside) Resume(method string) error {
	return errors.Join(o.set("hang-"+method, ""), o.set("linger-"+method, ""))
}

func (o Outside) set(name, content string) error {
	path := filepath.Join(o.Data, name)
	if content != "" {
		return os.WriteFile(path, []byte(content), 0o640)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Calls are the lines of all calls: begin METHOD VOLUME PATH, and end METHOD VOLUME CODE. Between them are those of Order.
func (o Outside) Calls() ([]string, error) {
	data, err := os.ReadFile(filepath.Join(o.Data, "calls.log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n"), nil
}
