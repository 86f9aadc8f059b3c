package dockertest

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
)

// archive sends a file of the image, or a link of it, as the engine does for `docker cp`.
func (e *Engine) archive(w http.ResponseWriter, r *http.Request, b *box) {
	name := r.URL.Query().Get("path")
	e.mu.Lock()
	content, ok := b.image.Files[name]
	e.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "Could not find the file %s in container %s", name, b.id)
		return
	}
	header := &tar.Header{Name: path.Base(name), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0)}
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
