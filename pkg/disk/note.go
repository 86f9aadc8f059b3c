package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ReadNote returns what WriteNote wrote; no file, or no path: the zero value. A file of another form is an error that says what to do about it.
func ReadNote[T any](path, remedy string) (note T, err error) {
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

// WriteNote replaces a file by value as JSON.
func WriteNote(path string, value any) error {
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
