package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/winkube/winkube/pkg/disk"
)

// noteFile is the file that keeps an Uplink; "": nothing is kept. With ForwardingFile and podcgroup.NoteFile it is all that this agent
// keeps in state files, since nothing else has it when it is needed: the host has lost it, the API server cannot be reached without it, Docker before 27.5 loses the labels of networks at
// each start (moby/moby 25009ed5c0), and objects of HNS have no field for it.
type noteFile string

// read returns what is kept; nil: nothing. A file that is no Uplink is an error that names it.
func (f noteFile) read() (*Uplink, error) {
	u, err := disk.ReadNote[*Uplink](string(f), "remove it once this host has its static address, gateway and DNS servers")
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's saved settings: %w", err)
	}
	return u, nil
}

// write replaces what is kept: a reader finds the whole of it or what was there before.
func (f noteFile) write(u Uplink) error {
	if f == "" {
		return nil
	}
	if err := disk.WriteNote(string(f), u); err != nil {
		return fmt.Errorf("cannot save the host's settings before creating the network: %w", err)
	}
	return nil
}

// remove forgets it; gone is no error.
func (f noteFile) remove() error {
	if f == "" {
		return nil
	}
	if err := os.Remove(string(f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the host's saved settings: %w", err)
	}
	return nil
}
