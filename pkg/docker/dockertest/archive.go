package dockertest

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
)

// archive sends a file or link of the image, as the engine does for `docker cp`.
func (e containerAPI) archive(w http.ResponseWriter, r *http.Request, b *box) {
	name := e.wantedPath(r)
	e.mu.Lock()
	content, ok := b.files[name]
	if !ok {
		content, ok = b.image.Files[name]
	}
	e.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "Could not find the file %s in container %s", name, b.id)
		return
	}
	header := &tar.Header{Name: path.Base(strings.ReplaceAll(name, `\`, "/")), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0)}
	link, isLink := strings.CutPrefix(content, "-> ")
	if isLink {
		header.Typeflag, header.Linkname, header.Size, content = tar.TypeSymlink, link, 0, ""
	}
	stat, err := json.Marshal(container.PathStat{Name: header.Name, Size: header.Size, LinkTarget: link})
	if err != nil {
		refuse(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString(stat))
	w.Header().Set("Content-Type", "application/x-tar")
	out := tar.NewWriter(w)
	if err := out.WriteHeader(header); err == nil {
		_, _ = out.Write([]byte(content))
		_ = out.Close()
	}
}

// wantedPath is the path that a request names. Windows engines also accept slashes, which Docker's client on Windows sends.
func (e containerAPI) wantedPath(r *http.Request) string {
	path := r.URL.Query().Get("path")
	if e.opts.OS == "windows" {
		path = strings.ReplaceAll(path, "/", `\`)
	}
	return path
}

// unpack extracts an archive into a container. On Windows it accepts only the system drive. No path may lead outside it.
func (e containerAPI) unpack(w http.ResponseWriter, r *http.Request, b *box) {
	root := e.wantedPath(r)
	if want := map[string]string{"windows": `C:\`, "linux": "/"}[e.opts.OS]; root != want {
		refuse(w, http.StatusBadRequest, "Could not find the path %s in container %s: want %s", root, b.id, want)
		return
	}
	files := map[string]string{}
	archive := tar.NewReader(r.Body)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(archive)
		}
		if err == nil && (path.IsAbs(header.Name) || strings.Contains(header.Name, "..") || strings.ContainsAny(header.Name, `\:`)) {
			err = fmt.Errorf("invalid name %q", header.Name)
		}
		if err != nil {
			refuse(w, http.StatusInternalServerError, "Error processing tar file: %v", err)
			return
		}
		name := root + header.Name
		if e.opts.OS == "windows" {
			name = strings.ReplaceAll(name, "/", `\`)
		}
		files[name] = string(data)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.files == nil {
		b.files = map[string]string{}
	}
	maps.Copy(b.files, files)
	w.WriteHeader(http.StatusOK)
}

// Copied returns the files that were copied into the container of that name, by path.
func (e *Engine) Copied(name string) map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.lookup(name); b != nil {
		return maps.Clone(b.files)
	}
	return nil
}
