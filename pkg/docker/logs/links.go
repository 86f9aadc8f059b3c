package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
)

// logLinks are the paths at which tools look for containers' logs: <dir>/<namespace>_<pod>_<uid>/<container>/<attempt>.log, a link to the engine's
// file, and next to dir containers/<pod>_<namespace>_<container>-<id>.log, a link to the former. (upstream: podLogsDir) The engine rotates by
// renaming, so that a link always leads to the current file, in the format of its json-file driver.
//
// Pods that mount these directories can put links there themselves. So logLinks never creates or removes anything through a link that leads
// elsewhere, and Logs never reads through a link.
type logLinks struct{ dir string }

const linkSuffix = ".log"

// logFile is the path of a container's json-file log on an engine with the given data root.
func logFile(root, id string) string { return filepath.Join(root, "containers", id, id+"-json.log") }

// idOf is the id of the container whose log file is target.
func idOf(target string) string { return filepath.Base(filepath.Dir(target)) }

// podLinks is the name of a pod's directory.
func podLinks(namespace, name, uid string) string { return namespace + "_" + name + "_" + uid }

// flatLink is the name of a link among those of all containers.
func flatLink(namespace, name, container, id string) string {
	base := fmt.Sprintf("%s_%s_%s-%s", name, namespace, container, id)
	return base[:min(len(base), 255-len(linkSuffix))] + linkSuffix
}

// flat is the directory of the links of all containers.
func (l logLinks) flat() string { return filepath.Join(filepath.Dir(l.dir), "containers") }

// with opens both directories and calls do. With make it creates missing directories; otherwise a missing directory is not an error.
func (l logLinks) with(make bool, do func(pods, flat *os.Root) error) error {
	var roots []*os.Root
	for _, dir := range []string{l.dir, l.flat()} {
		root, err := os.OpenRoot(dir)
		if make && errors.Is(err, fs.ErrNotExist) {
			if err = os.MkdirAll(dir, 0o755); err == nil {
				root, err = os.OpenRoot(dir)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer root.Close()
		roots = append(roots, root)
	}
	return do(roots[0], roots[1])
}

// add creates both links of a container; they may exist already.
func (l logLinks) add(p *v1.Pod, container string, attempt int, file string) error {
	first := filepath.Join(podLinks(p.Namespace, p.Name, string(p.UID)), container, strconv.Itoa(attempt)+linkSuffix)
	return l.with(true, func(pods, flat *os.Root) error {
		if err := pods.MkdirAll(filepath.Dir(first), 0o755); err != nil {
			return err
		}
		return errors.Join(relink(pods, first, file), relink(flat, flatLink(p.Namespace, p.Name, container, idOf(file)), filepath.Join(l.dir, first)))
	})
}

// relink makes name a link to target, replacing what was there.
func relink(root *os.Root, name, target string) error {
	err := root.Symlink(target, name)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if have, err := root.Readlink(name); err == nil && have == target {
		return nil
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return root.Symlink(target, name)
}

// remove deletes both links of those containers of a pod that unwanted selects, and then empty directories.
func (l logLinks) remove(podDir string, unwanted func(target string) bool) error {
	return l.with(false, func(pods, flat *os.Root) error { return unlink(pods, flat, podDir, unwanted) })
}

func unlink(pods, flat *os.Root, podDir string, unwanted func(target string) bool) error {
	parts := strings.SplitN(podDir, "_", 3) // no part of the name can contain an underscore
	links, err := fs.Glob(pods.FS(), podDir+"/*/*"+linkSuffix)
	if err != nil || len(parts) != 3 {
		return err
	}
	var errs []error
	for _, link := range links {
		target, err := pods.Readlink(link)
		if err != nil || !unwanted(target) {
			continue // not a link: not ours
		}
		dir := path.Dir(link)
		errs = append(errs, ignoreMissing(flat.Remove(flatLink(parts[0], parts[1], path.Base(dir), idOf(target)))), ignoreMissing(pods.Remove(link)))
		_ = pods.Remove(dir) // fails if it is not empty
	}
	_ = pods.Remove(podDir)
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes the links to logs of containers that the engine no longer has, and empty directories: a container was removed by others, or
// after the agent that asked for it had died, or the agent died between creating a directory and its link. Nothing may be added meanwhile.
func (l logLinks) sweep() error {
	return l.with(false, func(pods, flat *os.Root) error {
		dirs, err := fs.Glob(pods.FS(), "*_*_*")
		if err != nil {
			return err
		}
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, unlink(pods, flat, dir, func(target string) bool {
				_, err := os.Lstat(filepath.Dir(target)) // the container's directory: the log itself is made when the container starts
				return errors.Is(err, fs.ErrNotExist)
			}))
			containers, _ := fs.ReadDir(pods.FS(), dir)
			for _, c := range containers {
				if c.IsDir() {
					_ = pods.Remove(path.Join(dir, c.Name())) // fails if it is not empty
				}
			}
			_ = pods.Remove(dir)
		}
		return errors.Join(errs...)
	})
}

// linked says whether logs get links on this host: a remote engine's files are not here.
func (s *Store) linked() bool {
	return s.links.dir != "" && s.engine.Local()
}

// Link links the log of a container that is about to start; labels are the container's. A pod does not need the links, so failures are only logged.
func (s *Store) Link(p *v1.Pod, labels map[string]string, id string) {
	info, known := s.engine.LastInfo()
	if !known || !s.linked() || labels[identity.LabelType] != identity.TypeContainer {
		return
	}
	container := labels[identity.LabelContainerName]
	s.linking.Lock()
	defer s.linking.Unlock()
	if err := s.links.add(p, container, identity.Number(labels, identity.LabelRestartCount), logFile(info.Root, id)); err != nil {
		klog.ErrorS(err, "Cannot link a container's log", "pod", klog.KObj(p), "container", container)
	}
}

// Unlink removes the links to a removed container's log. Failures are only logged.
func (s *Store) Unlink(p *v1.Pod, id string) {
	if !s.linked() {
		return
	}
	if err := s.links.remove(podLinks(p.Namespace, p.Name, string(p.UID)), func(target string) bool { return idOf(target) == id }); err != nil {
		klog.ErrorS(err, "Cannot remove the links to a container's log", "pod", klog.KObj(p), "container", engine.ShortID(id))
	}
}

// Sweep removes the links that removed containers have left. Failures are only logged.
func (s *Store) Sweep() {
	if !s.linked() {
		return
	}
	s.linking.Lock()
	defer s.linking.Unlock()
	if err := s.links.sweep(); err != nil {
		klog.ErrorS(err, "Cannot remove links to removed logs")
	}
}
