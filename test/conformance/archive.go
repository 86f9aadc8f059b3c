package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/winkube/winkube/test/lab"
)

// entry is a file, directory or link in a layer. Its parent directories come from lower layers or from earlier entries.
type entry struct {
	name string // without a leading slash; a directory's name ends with one
	mode int64
	data []byte
	link string // target of a symbolic link
}

// layer is one file system layer: a tar file and its digest.
type layer struct {
	path   string
	digest string
	size   int64
}

// writeLayer writes a layer with entries, with equal bytes for equal entries.
func writeLayer(file string, entries []entry) (layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case e.link != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
		case e.name[len(e.name)-1] == '/':
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return layer{}, fmt.Errorf("cannot add %s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return layer{}, fmt.Errorf("cannot add %s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return layer{}, err
	}
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		return layer{}, err
	}
	return layerOf(file)
}

// layerOf returns the layer of a tar file, with its digest.
func layerOf(file string) (layer, error) {
	f, err := os.Open(file)
	if err != nil {
		return layer{}, err
	}
	defer f.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	return layer{path: file, digest: hex.EncodeToString(hash.Sum(nil)), size: size}, err
}

// built is an image in an archive.
type built struct {
	Name string
	ID   string // digest of its configuration, with algorithm

	content string // see lab.ContentLabel
}

// config returns the image's configuration; its digest is the image ID. It includes the name, because an engine that
// has two names for an image may report either.
func (img image) config() ([]byte, error) {
	digests := []string{}
	for _, l := range img.layers {
		digests = append(digests, "sha256:"+l.digest)
	}
	return lab.Seal(map[string]any{
		"architecture": lab.EnginePlatform(),
		"os":           "linux",
		"created":      "1970-01-01T00:00:00Z",
		"config": map[string]any{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint": img.entrypoint,
			"Cmd":        img.cmd,
			"User":       img.user,
			"WorkingDir": "/",
			"Labels":     map[string]string{"org.winkube.image": img.name},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
}

// writeArchive writes a file in the format of `docker save` with all images, each layer once.
func writeArchive(file string, images []image) ([]built, error) {
	partial, err := os.Create(file + ".partial")
	if err != nil {
		return nil, err
	}
	defer os.Remove(partial.Name())
	result, err := fillArchive(tar.NewWriter(partial), images)
	if err := errors.Join(err, partial.Close()); err != nil {
		return nil, fmt.Errorf("cannot write %s: %w", file, err)
	}
	return result, os.Rename(partial.Name(), file)
}

func fillArchive(w *tar.Writer, images []image) ([]built, error) {
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var result []built
	var manifests []manifest
	written := map[string]bool{}
	for _, img := range images {
		config, err := img.config()
		if err != nil {
			return nil, err
		}
		id := sum(config)
		m := manifest{Config: id + ".json", RepoTags: []string{img.name}}
		if err := add(w, m.Config, int64(len(config)), bytes.NewReader(config)); err != nil {
			return nil, err
		}
		for _, l := range img.layers {
			name := path.Join(l.digest, "layer.tar")
			m.Layers = append(m.Layers, name)
			if written[name] {
				continue
			}
			written[name] = true
			if err := addFile(w, name, l); err != nil {
				return nil, err
			}
		}
		manifests = append(manifests, m)
		result = append(result, built{Name: img.name, ID: "sha256:" + id})
	}
	data, err := json.Marshal(manifests)
	if err != nil {
		return nil, err
	}
	if err := add(w, "manifest.json", int64(len(data)), bytes.NewReader(data)); err != nil {
		return nil, err
	}
	return result, w.Close()
}

func addFile(w *tar.Writer, name string, l layer) error {
	f, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	return add(w, name, l.size, f)
}

func add(w *tar.Writer, name string, size int64, r io.Reader) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(w, r)
	return err
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}
