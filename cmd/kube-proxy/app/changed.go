package app

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/filewatch"
	"github.com/winkube/winkube/pkg/host"
)

// errConfigChanged ends the proxy, as in upstream: its manager restarts it with the new configuration. The host's
// configuration stays in place meanwhile.
var errConfigChanged = errors.New("the configuration file has changed; exiting, so that the service manager restarts the proxy with it")

// untilChanged returns errConfigChanged once the file at path has valid content other than content, and nil when ctx
// ends. If check rejects the new content, it logs that and the proxy continues with its configuration. It watches the
// directory because files are replaced: by editors, and in ConfigMap volumes by a symbolic link.
func untilChanged(ctx context.Context, path string, content []byte, check func() error) error {
	watcher, err := filewatch.New()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(filepath.Dir(path))
	}
	if err != nil {
		klog.InfoS("Cannot watch the configuration file; restart the proxy after changing it", "file", path, "reason", err)
		return nil
	}
	seen := content
	for {
		if now, err := os.ReadFile(path); err == nil && !bytes.Equal(now, seen) {
			seen = now
			if !bytes.Equal(now, content) { // the file may have been half written
				err := check()
				again, unread := os.ReadFile(path)
				switch {
				case err != nil:
					klog.ErrorS(err, "Ignored the changed configuration file; keeping the current configuration", "file", path)
				case unread == nil && bytes.Equal(again, content):
					seen = again // unchanged after all: the first read was partial
				default:
					return errConfigChanged
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Changed():
			if _, err := watcher.Take(); err != nil {
				klog.ErrorS(err, "Cannot watch the configuration file", "file", path)
			}
		}
	}
}

// recheck reads the command line and the configuration file again, and returns what is wrong with them.
func recheck(args []string) error {
	o, _, err := parse(args)
	if err != nil {
		return err
	}
	facts, err := host.Read()
	if err != nil {
		return err
	}
	_, err = o.settings(facts)
	return o.file.Located(err)
}
