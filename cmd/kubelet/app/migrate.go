package app

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/migrate"
)

// migrateFrom prints the configuration of another kubelet for this one. args are its flags; none: of the one that runs here. It changes nothing.
func migrateFrom(args []string, out io.Writer) error {
	facts, err := host.Read()
	if err != nil {
		return err
	}
	programs, err := migrate.Programs("/proc", args)
	if err != nil {
		return err
	}
	m, err := migrate.Translate(programs, ours(facts.OS))
	if err != nil {
		return err
	}
	return m.Print(out, accepts(m))
}

// ours is what this kubelet has.
func ours(system string) migrate.Ours {
	o := &options{}
	setDefaults(&o.config)
	return migrate.Ours{Flags: o.flagSet(), Foreign: foreign, Version: configVersion, Kind: configKind, Read: func(file, dir string) (*daemon.ConfigFile, any, error) {
		o := &options{}
		err := o.readFiles(file, dir, system)
		return &o.file, &o.config, err
	}}
}

// accepts reports what this kubelet still refuses on this host, nil if it would start.
func accepts(m *migrate.Migration) error {
	dir, err := os.MkdirTemp("", "kubelet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "config.yaml")
	if err := m.Write(file); err != nil {
		return err
	}
	_, _, _, err = prepare(append(slices.Clone(m.Flags), "--config="+file))
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), file, "the file"))
	}
	return nil
}
