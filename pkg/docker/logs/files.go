package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/filewatch"
	"github.com/winkube/winkube/pkg/host"
)

// Files are the files of one container's log: base is current, base.1 was rotated last, then base.2 and so on. The engine rotates by renaming, and
// never writes to a renamed file.
type Files struct {
	dir, base string
	count     int // maximum number of files that the engine keeps
}

// errNoLogFiles says that the log must be requested from the engine.
var errNoLogFiles = errors.New("the engine's log files cannot be read here")

// readable returns the files of a container's log; false if the log must be requested from the engine: it is on another host or not on Linux, uses
// another format, or compresses.
func (s *Store) readable(in container.InspectResponse) (Files, bool) {
	files, ok := s.Locate(in)
	return files, ok && s.os == "linux" && in.HostConfig.LogConfig.Config["compress"] != "true"
}

// Locate returns the location of a container's log; false: it is not in files on this host.
func (s *Store) Locate(in container.InspectResponse) (Files, bool) {
	if !s.engine.Local() || in.HostConfig == nil || in.HostConfig.LogConfig.Type != "json-file" || !filepath.IsAbs(in.LogPath) {
		return Files{}, false
	}
	config := in.HostConfig.LogConfig
	count, err := strconv.Atoi(config.Config["max-file"])
	if err != nil {
		count = 1
	}
	return Files{dir: filepath.Dir(in.LogPath), base: filepath.Base(in.LogPath), count: count}, true
}

// Retries of opening the files while the engine rotates them.
const (
	openTries = 100
	openPause = 2 * time.Millisecond
)

// open opens all files, the newest first. It retries while the engine renames them.
func (f Files) open() ([]*os.File, error) {
	root, err := os.OpenRoot(f.dir) // no name in it can lead to a file elsewhere
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoLogFiles, err)
	}
	defer root.Close()
	for range openTries {
		if files, ok := f.tryOpen(root); ok {
			return files, nil
		}
		time.Sleep(openPause)
	}
	return nil, fmt.Errorf("%w: %s has no %s, or its files are renamed all the time", errNoLogFiles, f.dir, f.base)
}

// tryOpen opens all files, unless they are being renamed: the newest is missing or no longer the newest, there is a gap, or one file is found twice.
func (f Files) tryOpen(root *os.Root) (files []*os.File, ok bool) {
	var infos []os.FileInfo
	defer func() {
		if !ok {
			closeAll(files)
		}
	}()
	gap := false
	for i := range max(f.count, 1) {
		file, info, err := host.OpenBelow(root, f.name(i))
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			gap = true
			continue
		}
		if err != nil {
			return files, false
		}
		files = append(files, file)
		if gap || !info.Mode().IsRegular() || slices.ContainsFunc(infos, func(o os.FileInfo) bool { return os.SameFile(o, info) }) {
			return files, false
		}
		infos = append(infos, info)
	}
	now, err := root.Lstat(f.base)
	return files, err == nil && os.SameFile(now, infos[0])
}

// name is the name of the file that was rotated i-1 times before the last one; 0 is the current one.
func (f Files) name(i int) string {
	if i == 0 {
		return f.base
	}
	return f.base + "." + strconv.Itoa(i)
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// Size returns the total size and number of the files, including compressed ones. It ignores files that vanish meanwhile.
func (f Files) Size() (bytes, count uint64) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		if e.Name() != f.base && !strings.HasPrefix(e.Name(), f.base+".") {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			bytes += uint64(info.Size())
			count++
		}
	}
	return bytes, count
}

// logReader is a position in a log: the rest of one file, and the files after it.
type logReader struct {
	files Files
	queue []*os.File // still to be read, the oldest first; the first is being read
	end   int64      // still to be read, the oldest first; the first is being read
	lines entryLines
}

// read opens the log at its last tail lines; -1: at its beginning.
func (f Files) read(tail int64) (*logReader, error) {
	files, err := f.open()
	if err != nil {
		return nil, err
	}
	r := &logReader{files: f}
	info, err := files[0].Stat()
	if err != nil {
		closeAll(files)
		return nil, fmt.Errorf("cannot examine log: %w", err)
	}
	r.end = info.Size()
	first, offset := len(files)-1, int64(0)
	if tail >= 0 {
		if first, offset, err = lastLines(files, r.end, tail); err != nil {
			closeAll(files)
			return nil, fmt.Errorf("%w: %w", errNoLogFiles, err)
		}
	}
	closeAll(files[first+1:])
	r.queue = files[:first+1]
	slices.Reverse(r.queue)
	r.begin(offset)
	return r, nil
}

func (r *logReader) close() { closeAll(r.queue) }

// begin reads the first file of the queue from offset on.
func (r *logReader) begin(offset int64) {
	r.lines = linesOf(r.queue[0], offset, math.MaxInt64)
}

// once writes the log up to its end at the time of opening.
func (r *logReader) once(ctx context.Context, w *logWriter) error {
	for ; ; r.shift(r.queue[1]) {
		last := len(r.queue) == 1
		if last {
			r.lines = linesOf(r.queue[0], r.lines.offset, r.end)
		}
		if err := r.lines.copy(ctx, w); err != nil {
			return err
		}
		if last {
			return w.end()
		}
	}
}

// shift continues with next, which is the second in the queue if there is one.
func (r *logReader) shift(next *os.File) {
	r.queue[0].Close()
	if r.queue = r.queue[1:]; len(r.queue) == 0 {
		r.queue = []*os.File{next}
	}
	r.begin(0)
}

// follow writes the log as it grows until the container has ended and everything is written, or ctx ends. changed signals possible changes in the
// directory.
func (r *logReader) follow(ctx context.Context, w *logWriter, changed, ended <-chan struct{}) error {
	over := false
	for {
		// Later output goes to this file or to a later one. If this is not the last file, reading it to its end completes it.
		last, err := r.last()
		if err != nil {
			return err
		}
		if err := r.lines.copy(ctx, w); err != nil {
			return err
		}
		if !last {
			next, err := r.next()
			if err != nil {
				return err
			}
			if next != nil {
				r.shift(next)
				continue
			}
		}
		if over {
			return w.end()
		}
		select {
		case <-changed:
		case <-ended:
			over = true
		case <-ctx.Done():
			return fmt.Errorf("cannot follow the log: %w", ctx.Err())
		}
	}
}

// last says whether the file being read is the one that the engine writes. It is not during a rotation.
func (r *logReader) last() (bool, error) {
	if len(r.queue) > 1 {
		return false, nil
	}
	mine, err := r.queue[0].Stat()
	if err != nil {
		return false, fmt.Errorf("cannot examine log: %w", err)
	}
	if mine.Size() < r.lines.offset { // it was truncated
		r.begin(0)
	}
	now, err := os.Lstat(filepath.Join(r.files.dir, r.files.base))
	return err == nil && os.SameFile(mine, now), nil
}

// next opens the file after the one being read; nil: it does not exist yet, or the container is gone.
func (r *logReader) next() (*os.File, error) {
	if len(r.queue) > 1 {
		return r.queue[1], nil
	}
	mine, err := r.queue[0].Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot examine log: %w", err)
	}
	files, err := r.files.open()
	if err != nil {
		return nil, nil //nolint:nilerr // as said
	}
	after := len(files) - 1
	for i, file := range files {
		if info, err := file.Stat(); err == nil && os.SameFile(info, mine) {
			after = i - 1
			break
		}
		if i == after {
			klog.V(1).InfoS("Log lines were lost: the reader fell behind by more than all files of the log", "file", r.files.base)
		}
	}
	if after < 0 {
		closeAll(files)
		return nil, nil
	}
	closeAll(files[:after])
	closeAll(files[after+1:])
	return files[after], nil
}

// watchDirectory sends changed whenever something in dir may have changed. stop must be called; the watch has ended when it returns.
func watchDirectory(dir string) (changed <-chan struct{}, stop func(), err error) {
	watcher, err := filewatch.New()
	if err != nil {
		return nil, nil, err
	}
	if err := watcher.Add(dir); err != nil {
		watcher.Close()
		return nil, nil, err
	}
	return watcher.Changed(), watcher.Close, nil
}
