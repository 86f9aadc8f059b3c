package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/winkube/winkube/pkg/disk"
)

// Forwarding is one address family of an interface of Windows on which forwarding was off until the kubelet switched it on.
type Forwarding struct {
	Interface string `json:"interface"`
	IPv6      bool   `json:"ipv6,omitempty"`
}

// ForwardingFile notes every Forwarding, so that a host that leaves the cluster gets back what it had: Windows does not say who switched forwarding on,
// and other programs may need it. "": nothing is noted.
type ForwardingFile string

// ForwardingFileIn is the file in the kubelet's directory.
func ForwardingFileIn(rootDir string) ForwardingFile {
	return ForwardingFile(filepath.Join(rootDir, "forwarding.json"))
}

// Read returns what is noted. A file of another form is an error that names it.
func (f ForwardingFile) Read() ([]Forwarding, error) {
	list, err := disk.ReadNote[[]Forwarding](string(f), "remove it and switch off forwarding where this host does not need it")
	if err != nil {
		return nil, fmt.Errorf("cannot read where forwarding was off: %w", err)
	}
	return list, nil
}

// Add notes one more, before it is switched on.
func (f ForwardingFile) Add(one Forwarding) error {
	list, err := f.Read()
	if f == "" || err != nil || slices.Contains(list, one) {
		return err
	}
	if err := disk.WriteNote(string(f), append(list, one)); err != nil {
		return fmt.Errorf("cannot record that forwarding was off on %q: %w", one.Interface, err)
	}
	return nil
}

// Undo switches off what is noted, with off, which says whether there was something to do, and forgets it. It returns the interfaces that off changed. An
// error keeps the note for another try.
func (f ForwardingFile) Undo(off func(Forwarding) (bool, error)) (changed []string, err error) {
	list, err := f.Read()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	var errs []error
	for _, one := range list {
		was, err := off(one)
		errs = append(errs, err)
		if was && !slices.Contains(changed, one.Interface) {
			changed = append(changed, one.Interface)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return changed, err
	}
	return changed, os.Remove(string(f))
}
