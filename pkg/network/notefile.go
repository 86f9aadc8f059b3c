package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// noteFile is the file that keeps an Uplink; "": nothing is kept. With ForwardingFile it is all that this agent keeps in state files, since nothing else
// has it when it is needed: the host has lost it, the API server cannot be reached without it, Docker before 27.5 loses the labels of networks at
// each start (moby/moby 25009ed5c0), and objects of HNS have no field for it.
type noteFile string

// read returns what is kept; nil: nothing. A file that is no Uplink is an error that names it.
func (f noteFile) read() (*Uplink, error) {
	u, err := readNote[*Uplink](string(f), "remove it once this host has its static address, gateway and DNS servers")
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
	if err := writeNote(string(f), u); err != nil {
		return fmt.Errorf("cannot save the host's settings before creating the network: %w", err)
	}
	return nil
}

// readNote returns what writeNote wrote; no file, or no path: the zero value. A file of another form is an error that says what to do about it.
func readNote[T any](path, remedy string) (note T, err error) {
	if path == "" {
		return note, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return note, nil
	}
	if err != nil {
		return note, err
	}
	if err := json.Unmarshal(text, &note); err != nil {
		var none T
		return none, fmt.Errorf("%s is not what the kubelet wrote (%w); %s", path, err, remedy)
	}
	return note, nil
}

// writeNote replaces a file by value as JSON.
func writeNote(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
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
