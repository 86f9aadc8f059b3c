package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/winkube/winkube/pkg/host"
)

const (
	logFileTimeout = 10 * time.Minute // for a whole file
	maxListed      = 10_000           // entries of one directory
)

// serveFile serves a file or a directory below Dir. Pods may mount a part of it and write anything there. So serveFile opens only regular files and
// directories, and serves a file up to its size at the time of opening. Browsers never see text as any other type.
func (n NodeLogs) serveFile(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(n.fileTimeout, logFileTimeout))
	defer cancel()
	name := strings.TrimPrefix(r.URL.Path, "/logs/")
	root, err := os.OpenRoot(n.Dir) // no name and no link in it leads outside
	if err != nil {
		plain(w, http.StatusNotFound, fmt.Sprintf("cannot open %s\n", n.Dir))
		return
	}
	defer root.Close()
	file, info, err := host.OpenBelow(root, path.Join(".", name))
	switch {
	case errors.Is(err, host.ErrIrregular):
		plain(w, http.StatusForbidden, fmt.Sprintf("%s is neither a file nor a directory\n", name))
		return
	case err != nil:
		plain(w, http.StatusNotFound, "404 page not found\n")
		return
	}
	defer file.Close()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch slash := name == "" || strings.HasSuffix(name, "/"); {
	case info.IsDir() && !slash:
		redirect(w, r, path.Base(name)+"/")
	case !info.IsDir() && slash:
		redirect(w, r, "../"+path.Base(name))
	case info.IsDir():
		list(ctx, w, file)
	default:
		w.Header().Set("Content-Type", logType(name))
		http.ServeContent(w, r, "", info.ModTime(), io.NewSectionReader(during{file, ctx}, 0, info.Size()))
	}
}

// redirect uses a relative URL: the request may have come through the API server.
func redirect(w http.ResponseWriter, r *http.Request, to string) {
	target := url.URL{Path: to, RawQuery: r.URL.RawQuery}
	w.Header().Set("Location", target.String())
	w.WriteHeader(http.StatusMovedPermanently)
}

// logType is text, except for compressed and binary formats.
func logType(name string) string {
	switch path.Ext(name) {
	case ".gz", ".bz2", ".xz", ".zst", ".zip", ".journal", ".evtx", ".etl":
		return "application/octet-stream"
	}
	return "text/plain; charset=utf-8"
}

// list writes the names in a directory, up to maxListed.
func list(ctx context.Context, w http.ResponseWriter, dir *os.File) {
	var names []string
	more := false
	for ctx.Err() == nil {
		entries, err := dir.ReadDir(1000)
		for _, entry := range entries {
			name := entry.Name()
			if entry.IsDir() {
				name += "/"
			}
			names = append(names, name)
		}
		if more = len(names) > maxListed; more || err != nil || len(entries) == 0 {
			break
		}
	}
	names = names[:min(len(names), maxListed)]
	slices.Sort(names)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n")
	for _, name := range names {
		link := url.URL{Path: name}
		fmt.Fprintf(w, "<a href=\"%s\">%s</a>\n", html.EscapeString(link.String()), html.EscapeString(name))
	}
	if more {
		fmt.Fprintf(w, "and more: these are the first %d that were found\n", maxListed)
	}
	fmt.Fprint(w, "</pre>\n")
}

// during is a file whose reads fail once ctx has ended.
type during struct {
	io.ReaderAt
	ctx context.Context
}

// ReadAt implements io.ReaderAt.
func (d during) ReadAt(p []byte, offset int64) (int, error) {
	if err := d.ctx.Err(); err != nil {
		return 0, err
	}
	return d.ReaderAt.ReadAt(p, offset)
}

// copyFile writes the first existing file of names below Dir.
func (n NodeLogs) copyFile(ctx context.Context, w io.Writer, names ...string) {
	root, err := os.OpenRoot(n.Dir)
	if err == nil {
		defer root.Close()
		for _, name := range names {
			if err = copyLog(ctx, w, root, strings.TrimPrefix(strings.ReplaceAll(name, `\`, "/"), "/")); err == nil {
				return
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(w, "\nlog not found for %s\n", names[0])
		return
	}
	fmt.Fprintf(w, "\nerror getting log for %s: %v\n", names[0], err)
}

func copyLog(ctx context.Context, w io.Writer, root *os.Root, name string) error {
	file, info, err := host.OpenBelow(root, name)
	if err != nil {
		return err
	}
	defer file.Close()
	if info.IsDir() {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	_, err = io.Copy(w, io.NewSectionReader(during{file, ctx}, 0, info.Size()))
	return err
}
