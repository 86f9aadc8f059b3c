package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// logLinks are the names under which tools look for containers' logs: <dir>/<namespace>_<pod>_<uid>/<container>/<attempt>.log, a link to
// the engine's file, and beside dir containers/<pod>_<namespace>_<container>-<id>.log, a link to the former. (upstream: podLogsDir)
type logLinks struct{ dir string }

const linkSuffix = ".log"

// logFile is where an engine with the data root root keeps a container's json-file log.
func logFile(root, id string) string { return filepath.Join(root, "containers", id, id+"-json.log") }

// idOf is the container whose log file target is.
func idOf(target string) string { return filepath.Base(filepath.Dir(target)) }

func (l logLinks) pod(namespace, name, uid string) string {
	return filepath.Join(l.dir, namespace+"_"+name+"_"+uid)
}

func (l logLinks) second(namespace, name, container, id string) string {
	base := fmt.Sprintf("%s_%s_%s-%s", name, namespace, container, id)
	base = base[:min(len(base), 255-len(linkSuffix))]
	return filepath.Join(filepath.Dir(l.dir), "containers", base+linkSuffix)
}

// add makes both names for a container, of which they may exist already.
func (l logLinks) add(p *v1.Pod, container string, attempt int, file string) error {
	first := filepath.Join(l.pod(p.Namespace, p.Name, string(p.UID)), container, strconv.Itoa(attempt)+linkSuffix)
	return errors.Join(relink(first, file), relink(l.second(p.Namespace, p.Name, container, idOf(file)), first))
}

// relink makes name a link to target, whatever it was.
func relink(name, target string) error {
	if have, err := os.Readlink(name); err == nil && have == target {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, name)
}

// remove takes away both names of those containers of a pod for which unwanted says so, and the directories that are empty then.
func (l logLinks) remove(podDir string, unwanted func(target string) bool) error {
	parts := strings.SplitN(filepath.Base(podDir), "_", 3) // no part of the name can have an underscore
	if len(parts) != 3 {
		return nil
	}
	links, err := filepath.Glob(filepath.Join(podDir, "*", "*"+linkSuffix))
	if err != nil || len(links) == 0 && !present(podDir) {
		return err
	}
	var errs []error
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !unwanted(target) {
			continue // not a link: not ours
		}
		dir := filepath.Dir(link)
		for _, name := range []string{l.second(parts[0], parts[1], filepath.Base(dir), idOf(target)), link} {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		_ = os.Remove(dir) // while there is something in it, it stays
	}
	_ = os.Remove(podDir)
	return errors.Join(errs...)
}

func present(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sweep removes names whose log is gone: containers were removed while nobody looked.
func (l logLinks) sweep() error {
	dirs, err := filepath.Glob(filepath.Join(l.dir, "*_*_*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, l.remove(dir, func(target string) bool { return !present(target) }))
	}
	return errors.Join(errs...)
}

// hasLogLinks says whether logs get names on this host: a remote engine's files are not here.
func (e *Engine) hasLogLinks() bool {
	return e.cfg.LogsDir != "" && !strings.HasPrefix(e.host, "tcp://")
}

// linkLog names the log of a container that is about to start. Nothing waits for tools that read logs: a failure is only noted.
func (e *Engine) linkLog(p *v1.Pod, labels map[string]string, id string) {
	root, known := e.root.Load().(string)
	if !known || !e.hasLogLinks() || labels[LabelType] != typeContainer {
		return
	}
	if err := (logLinks{e.cfg.LogsDir}).add(p, labels[LabelContainerName], number(labels, LabelRestartCount), logFile(root, id)); err != nil {
		klog.ErrorS(err, "Cannot link a container's log", "pod", klog.KObj(p), "container", labels[LabelContainerName])
	}
}

// unlinkLog takes the names of a removed container's log away.
func (e *Engine) unlinkLog(p *v1.Pod, id string) {
	if !e.hasLogLinks() {
		return
	}
	l := logLinks{e.cfg.LogsDir}
	if err := l.remove(l.pod(p.Namespace, p.Name, string(p.UID)), func(target string) bool { return idOf(target) == id }); err != nil {
		klog.ErrorS(err, "Cannot remove the links to a container's log", "pod", klog.KObj(p), "container", short(id))
	}
}

// sweepLogs removes, once, names that earlier lives of this agent left.
func (e *Engine) sweepLogs() {
	if !e.hasLogLinks() {
		return
	}
	e.swept.Do(func() {
		if err := (logLinks{e.cfg.LogsDir}).sweep(); err != nil {
			klog.ErrorS(err, "Cannot remove links to logs that are gone")
		}
	})
}
