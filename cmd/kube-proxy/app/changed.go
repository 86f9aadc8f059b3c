package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
)

// errConfigChanged ends the proxy, as it ends upstream's: who runs it starts it again, with the new configuration. What it made on the host stays
// meanwhile.
var errConfigChanged = errors.New("the configuration file has changed: ending, to be started again with it")

// untilChanged returns errConfigChanged once the file at path holds something else than content that check finds good, and nil when ctx ends. What
// is not good is said, and the proxy goes on with what it has. The directory is watched, since files are replaced: by editors, and in ConfigMap
// volumes by a link that leads elsewhere.
func untilChanged(ctx context.Context, path string, content []byte, check func() error) error {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(filepath.Dir(path))
	}
	if err != nil {
		klog.InfoS("Changes of the configuration file are not seen", "file", path, "reason", err)
		return nil
	}
	seen := content
	for {
		if now, err := os.ReadFile(path); err == nil && !bytes.Equal(now, seen) {
			seen = now
			if !bytes.Equal(now, content) { // it may have been half written when it was seen
				err := check()
				again, unread := os.ReadFile(path)
				switch {
				case err != nil:
					klog.ErrorS(err, "The changed configuration file is not used", "file", path)
				case unread == nil && bytes.Equal(again, content):
					seen = again // it is as it was: what was seen was a part of that
				default:
					return errConfigChanged
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case err := <-watcher.Errors:
			klog.ErrorS(err, "Cannot watch the configuration file", "file", path)
		}
	}
}

// recheck reads the configuration file anew, with the flags of the command line, and says what is wrong with it.
func (o *options) recheck(fs *pflag.FlagSet) error {
	next, flags, err := o.anew(fs)
	if err != nil {
		return err
	}
	facts, err := host.Read()
	if err != nil {
		return err
	}
	if err := next.readConfig(flags); err != nil {
		return err
	}
	_, err = next.settings(facts)
	return next.file.Located(err)
}

// anew are options with the flags of the command line alone, before a configuration file was read.
func (o *options) anew(fs *pflag.FlagSet) (*options, *pflag.FlagSet, error) {
	next, flags := &options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	daemon.AddFlags(flags)
	next.addFlags(flags)
	var errs []error
	fs.Visit(func(f *pflag.Flag) {
		to := flags.Lookup(f.Name)
		if o.file.Sets(f.Name) || to == nil {
			return
		}
		to.Changed = true
		if list, ok := f.Value.(pflag.SliceValue); ok {
			errs = append(errs, to.Value.(pflag.SliceValue).Replace(list.GetSlice()))
		} else if f.Value.Type() != "stringToString" { // feature gates, which are ignored
			errs = append(errs, to.Value.Set(f.Value.String()))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return nil, nil, fmt.Errorf("cannot read the flags again: %w", err)
	}
	return next, flags, nil
}
