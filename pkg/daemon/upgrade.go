package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// What stands beside an installed program: the one that it replaced, one that is being laid down, one that a roll-back holds for a moment.
const (
	oldSuffix  = ".old"
	newSuffix  = ".new"
	backSuffix = ".back"
)

// upgrade puts this program in the place of the service's own and starts the service with it. What is refused, is refused before anything
// is changed. Said again after it was cut short at any point, it ends what was begun.
func (c *serviceCommand) upgrade() error {
	have, err := c.installed()
	if err != nil {
		return err
	}
	ours, err := c.manager.Executable()
	if err != nil {
		return err
	}
	path := have.Argv[0]
	same, err := sameContent(ours, path)
	if err != nil {
		return err
	}
	if same {
		c.say("%s is of version %s already; an upgrade is said by the new program", path, Version)
		return c.start()
	}
	if _, err := c.program.Check(have.Argv[1:]); err != nil {
		return fmt.Errorf("version %s does not accept the service's flags; nothing was changed: %w", Version, err)
	}
	if c.program.Skew != nil {
		if err := c.program.Skew(have.Argv[1:]); err != nil {
			c.say("note: %s", oneLine(err))
		}
	}
	if err := copyProgram(ours, path+newSuffix); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	return c.exchange(path, replace, fmt.Sprintf("version %s now runs instead of the previous one, %s; service rollback restores that", Version, path+oldSuffix))
}

// rollback changes the service's program and the one before it. Said twice it changes them back.
func (c *serviceCommand) rollback() error {
	have, err := c.installed()
	if err != nil {
		return err
	}
	path := have.Argv[0]
	if !exists(path+oldSuffix) && !exists(path+backSuffix) {
		return fmt.Errorf("cannot roll back to %s: it does not exist, because this program was not upgraded with service upgrade", path+oldSuffix)
	}
	return c.exchange(path, putBack, "the version before runs again; service rollback, said again, goes forward")
}

// installed is the service's registration.
func (c *serviceCommand) installed() (*Registration, error) {
	have, _, err := c.manager.Read(c.program.Name)
	if err == nil && (have == nil || len(have.Argv) == 0) {
		err = errNotInstalled
	}
	return have, err
}

// exchange stops the service, changes programs and starts it. One that does not start gives way to the one before.
func (c *serviceCommand) exchange(path string, change func(path string) error, done string) error {
	name := c.program.Name
	_, running, err := c.manager.Read(name)
	if err != nil {
		return err
	}
	if running.State != stateStopped {
		if err := c.manager.Stop(name); err != nil {
			return err
		}
	}
	if err := change(path); err != nil {
		return errors.Join(fmt.Errorf("the program was not changed: %w", err), c.manager.Start(name))
	}
	if err := c.manager.Start(name); err != nil {
		return errors.Join(fmt.Errorf("it does not start; restoring the previous program: %w", err), putBack(path), c.manager.Start(name))
	}
	c.say("%s", done)
	return nil
}

// replace moves the program at path aside and the new one into its place. Windows lets a program that runs be renamed, and not be
// overwritten. There is none at path where an exchange was cut short.
func replace(path string) error {
	if err := os.Rename(path, path+oldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(path+newSuffix, path)
}

// putBack changes the program at path and the old one. It goes on with what was cut short before.
func putBack(path string) error {
	if exists(path + oldSuffix) {
		if err := os.Rename(path, path+backSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Rename(path+oldSuffix, path); err != nil {
			return err
		}
	}
	if err := os.Rename(path+backSuffix, path+oldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // there was no program to keep where an upgrade was cut short
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sameContent compares two programs; one that is not there is not the same.
func sameContent(ours, path string) (bool, error) {
	a, err := os.ReadFile(ours)
	if err != nil {
		return false, fmt.Errorf("cannot read this program: %w", err)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the service's program: %w", err)
	}
	return bytes.Equal(a, b), nil
}

// copyProgram lays down a whole program on the disk, or nothing.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		_ = os.Remove(to)
	}
	return err
}
