package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Files next to an installed program: the one that it replaced, a copy in progress, and a temporary file of a rollback.
const (
	oldSuffix  = ".old"
	newSuffix  = ".new"
	backSuffix = ".back"
)

// upgrade replaces the service's program by this one and restarts the service. It checks everything before it changes anything. Run again after an
// interruption at any point, it completes the upgrade.
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
		c.say("%s already has version %s; run service upgrade with the new program", path, Version)
		return c.start()
	}
	if newer := c.newerAt(path); newer != "" && !c.older {
		return fmt.Errorf("%s has version %s, which is newer than %s; nothing was changed: to go back, run service rollback, or service upgrade --allow-downgrade", path, newer, Version)
	}
	if _, err := c.program.Check(c.program.flagsOf(have)); err != nil {
		return fmt.Errorf("version %s does not accept the service's flags; nothing was changed: %w", Version, err)
	}
	if c.program.Skew != nil {
		if err := c.program.Skew(c.program.flagsOf(have)); err != nil {
			c.say("note: %s", oneLine(err))
		}
	}
	if err := copyProgram(ours, path+newSuffix); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	return c.exchange(path, replace, fmt.Sprintf("version %s now runs instead of the previous one, %s; service rollback restores that", Version, path+oldSuffix))
}

// ownVersion is the line of --version=full with the program's own version.
var ownVersion = regexp.MustCompile(`(?m)^winkube (\S+?)\r?$`)

// newerAt returns the version of the program at path if it is newer than this one. A program that does not print its version, or is not there after
// an interrupted exchange, is not.
func (c *serviceCommand) newerAt(path string) string {
	text, err := c.full(path)
	found := ownVersion.FindStringSubmatch(text)
	if err != nil || found == nil {
		return ""
	}
	there, err := version.ParseSemantic(found[1])
	if err != nil {
		return ""
	}
	if here, err := version.ParseSemantic(Version); err != nil || !here.LessThan(there) {
		return ""
	}
	return found[1]
}

// rollback swaps the service's program and the previous one. A second call swaps them back.
func (c *serviceCommand) rollback() error {
	have, err := c.installed()
	if err != nil {
		return err
	}
	path := have.Argv[0]
	if !exists(path+oldSuffix) && !exists(path+backSuffix) {
		return fmt.Errorf("cannot roll back to %s: it does not exist, because this program was not upgraded with service upgrade", path+oldSuffix)
	}
	for _, suffix := range []string{oldSuffix, backSuffix} {
		if err := c.manager.Trusted(path + suffix); err != nil {
			return fmt.Errorf("cannot roll back; nothing was changed: %w", err)
		}
	}
	return c.exchange(path, putBack, "the previous version runs again; run service rollback once more to return to the newer one")
}

// installed returns the service's registration.
func (c *serviceCommand) installed() (*Registration, error) {
	have, _, err := c.manager.Read(c.program.Name)
	if err == nil && (have == nil || len(have.Argv) == 0) {
		err = errNotInstalled
	}
	return have, err
}

// exchange stops the service, changes programs and starts it. If the new program does not start, it restores the previous one. Other services with
// the same program stop and start too.
func (c *serviceCommand) exchange(path string, change func(path string) error, done string) error {
	name := c.program.Name
	beside, err := c.beside(path)
	if err != nil {
		return err
	}
	_, running, err := c.manager.Read(name)
	if err != nil {
		return err
	}
	all := append([]string{name}, beside...)
	stop := all
	if running.State == stateStopped {
		stop = beside
	}
	for i, one := range stop {
		if err := c.manager.Stop(one); err != nil {
			return errors.Join(err, forEach(stop[:i], c.manager.Start))
		}
	}
	if err := change(path); err != nil {
		return errors.Join(fmt.Errorf("the program was not changed: %w", err), forEach(all, c.manager.Start))
	}
	if err := c.manager.Start(name); err != nil {
		return errors.Join(fmt.Errorf("it does not start; restoring the previous program: %w", err), putBack(path), forEach(all, c.manager.Start))
	}
	if err := forEach(beside, c.manager.Start); err != nil {
		return fmt.Errorf("%s runs the changed program, but another service that was stopped for it does not start: %w", name, err)
	}
	c.say("%s", done)
	return nil
}

// beside returns the other services that currently run the program at path.
func (c *serviceCommand) beside(path string) (names []string, err error) {
	for _, name := range c.program.Beside {
		have, running, err := c.manager.Read(name)
		if err != nil {
			return nil, err
		}
		if have != nil && len(have.Argv) > 0 && strings.EqualFold(have.Argv[0], path) && running.State != stateStopped {
			names = append(names, name)
		}
	}
	return names, nil
}

func forEach(names []string, do func(string) error) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, do(name))
	}
	return errors.Join(errs...)
}

// replace moves the program at path aside and the new one into its place. Windows allows renaming a running program, but not overwriting it. path may
// not exist after an interrupted exchange.
func replace(path string) error {
	if err := os.Rename(path, path+oldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(path+newSuffix, path)
}

// putBack swaps the program at path and the old one. It completes an interrupted swap.
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
	return nil // an interrupted upgrade left no program to keep
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sameContent compares two programs; a missing one is different.
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
