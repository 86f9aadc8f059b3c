// Package plugins finds what registers itself with the kubelet by a socket below one directory (plugins_registry): CSI drivers do. It follows the
// directory, asks each socket what it is, gives it to the Handler of its type, and reports the outcome to the plugin.
//
//	directory -> scan -> one goroutine per socket: GetInfo -> Handler.Register -> NotifyRegistrationStatus -> (socket gone) release
//
// A plugin that hangs holds up its own registration only.
package plugins

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/filewatch"
)

// Plugin is what a plugin says of itself.
type Plugin struct {
	Type     string // as CSIPlugin
	Name     string
	Endpoint string // socket of the service; where the plugin names none, the socket that it registers by
	Versions []string
}

// Handler accepts plugins of one type.
type Handler interface {
	// Register makes a plugin usable until release is called, or says why it cannot. Registrations of one name may overlap: while a plugin is
	// replaced, the new one registers before the old one is released. ctx ends when the socket is gone. Any goroutine calls it.
	Register(ctx context.Context, p Plugin) (release func(), err error)
}

// Config is what a Watcher needs to know.
type Config struct {
	Dir string // plugins_registry; made if it is missing
	// Windows: the system may not say of a file whether it is a socket, so that every file is asked.
	Windows  bool
	Handlers map[string]Handler // by type
	// Relist is how often the directory is read although no event came, because a watch can be lost with a directory that is removed and made
	// again. 0: never.
	Relist time.Duration
	Clock  clock.WithTicker
	Wire   Wire // nil: Unix
}

const (
	firstPause = 500 * time.Millisecond // after a failed registration, and twice that after each further one
	lastPause  = time.Minute
	// mostDoubts is how often a file that may be no socket is asked.
	mostDoubts = 5
)

// errGone is why a registration ends before the kubelet does.
var errGone = errors.New("the socket is gone or was replaced")

// Watcher follows the directory. Make it with New.
type Watcher struct {
	cfg     Config
	sockets map[string]*socket // by path; Run's goroutine alone
	running sync.WaitGroup
}

// New makes a Watcher, which has not begun.
func New(cfg Config) *Watcher {
	return &Watcher{cfg: cfg, sockets: map[string]*socket{}}
}

// socket is one socket as it was found. Another at the same path is another file, or has another time.
type socket struct {
	path   string
	info   fs.FileInfo
	sure   bool                    // it is a socket
	cancel context.CancelCauseFunc // its registration ends
	// asked is closed after the first attempt to register, however it ended: then the socket's predecessor is released.
	asked chan struct{}
}

// Run follows the directory until ctx ends, and returns when every registration has ended. Plugins are then released.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := w.watch(ctx)
	if events == nil {
		return nil
	}
	defer events.Close()
	failed := ""
	for gone := map[string]bool(nil); ; {
		var again <-chan time.Time
		if err := w.scan(ctx, events, gone); err != nil {
			if failed != err.Error() {
				klog.ErrorS(err, "Cannot look for plugins; trying again", "directory", w.cfg.Dir)
			}
			failed, again = err.Error(), w.cfg.Clock.After(firstPause)
		} else if failed = ""; w.cfg.Relist > 0 {
			again = w.cfg.Clock.After(w.cfg.Relist)
		}
		var going bool
		if gone, going = wait(ctx, events, again); !going {
			return nil
		}
	}
}

// watch makes the watch; nil: ctx has ended. The host may have none to give (fs.inotify.max_user_instances), and then pods run without plugins.
func (w *Watcher) watch(ctx context.Context) *filewatch.Watcher {
	for said := false; ; said = true {
		events, err := filewatch.New()
		if err == nil {
			return events
		}
		if !said {
			klog.ErrorS(err, "Cannot watch for plugins, so that no CSI driver can register; trying again", "directory", w.cfg.Dir)
		}
		select {
		case <-w.cfg.Clock.After(lastPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// wait returns when the directory has to be looked at, with the paths that were removed meanwhile, and false when ctx has ended. Events that were lost
// count as one.
func wait(ctx context.Context, events *filewatch.Watcher, again <-chan time.Time) (gone map[string]bool, going bool) {
	gone = map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case <-again:
			return gone, true
		case <-events.Changed():
			changes, err := events.Take()
			if err != nil {
				klog.ErrorS(err, "Watching for plugins failed; looking at the directory again")
			}
			for _, c := range changes {
				if c.Gone {
					gone[c.Path] = true
				}
			}
			if err != nil || slices.ContainsFunc(changes, func(c filewatch.Change) bool { return !c.Attributes }) {
				return gone, true
			}
		}
	}
}

// scan compares the sockets of the directory with those that are known. Sockets at the paths in gone are new. Each directory is watched before it is read.
func (w *Watcher) scan(ctx context.Context, events *filewatch.Watcher, gone map[string]bool) error {
	if err := os.MkdirAll(w.cfg.Dir, 0o750); err != nil {
		return err
	}
	seen := map[string]bool{}
	err := filepath.WalkDir(w.cfg.Dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path == w.cfg.Dir:
			return err
		case err != nil: // it went meanwhile, and the next event says so
			return nil
		case entry.IsDir():
			if path != w.cfg.Dir && strings.HasPrefix(entry.Name(), ".") {
				return filepath.SkipDir
			}
			if err := events.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		if found := w.look(path, entry.Name()); found != nil {
			seen[path] = true
			w.have(ctx, found, gone[path])
		}
		return nil
	})
	if err != nil {
		return err
	}
	for path, s := range w.sockets {
		if !seen[path] {
			s.cancel(errGone)
			delete(w.sockets, path)
		}
	}
	return nil
}

// look says what there is at path; nil: nothing that registers.
func (w *Watcher) look(path, name string) *socket {
	if strings.HasPrefix(name, ".") {
		return nil
	}
	// Windows cannot open a socket to follow what may be a link: what the file itself is says enough there.
	// Source: kubernetes pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher_windows.go, microsoft/Windows-Containers#97.
	info, err := os.Stat(path)
	if err != nil || w.cfg.Windows && info.Mode()&fs.ModeSocket == 0 {
		if info, err = os.Lstat(path); err != nil {
			return nil
		}
	}
	sure := info.Mode()&fs.ModeSocket != 0
	if info.IsDir() || !sure && !w.cfg.Windows {
		return nil
	}
	return &socket{path: path, info: info, sure: sure}
}

// same reports whether two finds at one path are one socket. Sockets made within a tick of the kernel's clock have the same time, and a file's number may
// be used again. Windows cannot open a socket to read its number.
func (w *Watcher) same(old, found *socket) bool {
	return old.info.ModTime().Equal(found.info.ModTime()) && (w.cfg.Windows || os.SameFile(old.info, found.info))
}

// have begins the registration of a socket that is new: gone says that another one at its path was removed. One in place of another takes over when it
// was asked for the first time.
func (w *Watcher) have(ctx context.Context, found *socket, gone bool) {
	old := w.sockets[found.path]
	if old != nil && !gone && w.same(old, found) {
		return
	}
	found.asked = make(chan struct{})
	var until context.Context
	until, found.cancel = context.WithCancelCause(ctx)
	w.sockets[found.path] = found
	w.running.Go(func() { w.keep(until, found) })
	if old != nil {
		w.running.Go(func() {
			<-found.asked
			old.cancel(errGone)
		})
	}
}

// keep registers the plugin of a socket, again after each failure, and releases it when ctx ends.
func (w *Watcher) keep(ctx context.Context, s *socket) {
	defer s.cancel(nil)
	asked := sync.OnceFunc(func() { close(s.asked) })
	defer asked()
	pause, said := firstPause, ""
	for doubts := 0; ; {
		release, err := w.register(ctx, s)
		asked()
		switch {
		case ctx.Err() != nil:
			if release != nil {
				release()
			}
			return
		case err == nil:
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), errGone) { // and not the kubelet ends
				klog.InfoS("A plugin is gone", "socket", s.path)
			}
			release()
			return
		case errors.As(err, new(refusedError)):
			klog.ErrorS(err, "Refused a plugin", "socket", s.path)
			return
		case !s.sure && errors.As(err, new(silentError)):
			if doubts++; doubts == mostDoubts {
				return // an ordinary file
			}
		case err.Error() != said:
			said = err.Error()
			klog.ErrorS(err, "Cannot register a plugin; trying again", "socket", s.path)
		}
		select {
		case <-w.cfg.Clock.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, lastPause)
	}
}
