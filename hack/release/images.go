package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// pauseUser is the user of a pod's first process, which needs no rights. Upstream's image has the same number.
const pauseUser = "65535:65535"

// hostPrograms are links by which a container finds the host's nft and iptables: build/kubernetes/proxy-daemonset.yaml mounts the host's /usr at /usr.
var hostPrograms = []file{{"bin", fs.ModeSymlink, []byte("usr/bin")}, {"lib", fs.ModeSymlink, []byte("usr/lib")}, {"lib64", fs.ModeSymlink, []byte("usr/lib64")},
	{"sbin", fs.ModeSymlink, []byte("usr/sbin")}}

// imageOf returns the image of a program, without a base image.
func (s *source) imageOf(p program, licence, thirdParty []byte) (v1.Image, error) {
	files := []file{{p.Name, 0o755, p.Data}, {"licenses/LICENSE", 0o644, licence}, {"licenses/THIRD_PARTY_LICENSES.txt", 0o644, thirdParty}}
	config := v1.Config{Entrypoint: []string{"/" + p.Name}, Labels: map[string]string{
		"org.opencontainers.image.title":    "winkube " + p.Name,
		"org.opencontainers.image.version":  s.Version,
		"org.opencontainers.image.revision": s.Commit,
		"org.opencontainers.image.source":   homepage,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}}
	if p.Name == "proxy" {
		files = append(files, hostPrograms...)
		config.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	} else {
		config.User = pauseUser
	}
	var archive bytes.Buffer
	if err := writePlainTar(&archive, files, s.When); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(base, &v1.ConfigFile{Architecture: p.Arch, OS: p.System, Created: v1.Time{Time: s.When}, Config: config, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: s.When}, CreatedBy: "winkube hack/release"}})
}

// imageName is the name of a loaded image.
func imageName(program, version string) string { return "winkube/" + program + ":" + version }

// writeImage writes an OCI archive: a tar archive with the OCI image layout (https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md).
// Older engines only load images with a manifest.json; newer engines also write both.
func (s *source) writeImage(w io.Writer, image v1.Image, name string) error {
	full, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
		Annotations: map[string]string{"org.opencontainers.image.ref.name": name, "io.containerd.image.name": full.String()},
		Platform:    &v1.Platform{OS: config.OS, Architecture: config.Architecture},
	}})
	top, err := index.RawManifest()
	if err != nil {
		return err
	}
	files, docker, err := blobs(image)
	if err != nil {
		return err
	}
	docker.RepoTags = []string{name}
	older, err := json.Marshal([]dockerManifest{docker})
	if err != nil {
		return err
	}
	return writePlainTar(w, append(files, file{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, file{"index.json", 0o644, top}, file{"manifest.json", 0o644, older}), s.When)
}

// dockerManifest is an image in the manifest.json of `docker save`.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// blobs are the manifest, configuration and layers of an image, at their places in a layout.
func blobs(image v1.Image) (files []file, docker dockerManifest, err error) {
	place := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	add := func(digest func() (v1.Hash, error), read func() ([]byte, error)) string {
		hash, hashErr := digest()
		data, readErr := read()
		if err == nil {
			err = hashErr
		}
		if err == nil {
			err = readErr
		}
		files = append(files, file{place(hash), 0o644, data})
		return place(hash)
	}
	add(image.Digest, image.RawManifest)
	docker.Config = add(image.ConfigName, image.RawConfigFile)
	layers, layersErr := image.Layers()
	if layersErr != nil {
		return nil, docker, layersErr
	}
	for _, l := range layers {
		docker.Layers = append(docker.Layers, add(l.Digest, func() ([]byte, error) {
			r, err := l.Compressed()
			if err != nil {
				return nil, err
			}
			defer r.Close()
			return io.ReadAll(r)
		}))
	}
	return files, docker, err
}

// buildPause builds the first process of pods for each architecture of Linux. No archive contains it.
func (b *build) buildPause(ctx context.Context) error {
	for _, p := range platforms {
		if p.system != "linux" {
			continue
		}
		name := filepath.Join(b.Root, "_output", "bin", p.system, p.arch, "pause")
		target, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		if _, err := b.output(ctx, "env", "GOOS="+p.system, "GOARCH="+p.arch, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", target, "./build/images/pause"); err != nil {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := checkProgram(data, p.system, p.arch); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		modules, err := dependencies(name)
		if err != nil {
			return err
		}
		b.programs = append(b.programs, program{"pause", p.system, p.arch, data, modules})
	}
	return nil
}

// makeImages writes an OCI archive for each Linux program that runs in a container: proxy and pause.
func (b *build) makeImages(context.Context) error {
	licence, err := os.ReadFile(filepath.Join(b.Root, "LICENSE"))
	if err != nil {
		return err
	}
	for _, p := range b.programs {
		if p.System != "linux" || p.Name == "kubelet" {
			continue
		}
		third := b.third
		if p.Name == "pause" {
			third = thirdParty(p.Modules) // only Go's standard library
		}
		image, err := b.imageOf(p, licence, third)
		if err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		var data bytes.Buffer
		if err := b.writeImage(&data, image, imageName(p.Name, b.Version)); err != nil {
			return err
		}
		archive := fmt.Sprintf("winkube-%s-%s-%s-%s.oci.tar", p.Name, b.Version, p.System, p.Arch)
		b.images = append(b.images, madeImage{p, archive, digest.String(), sum(data.Bytes())})
		if err := b.add(archive, data.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// madeImage is an image and its archive, for the bill of materials.
type madeImage struct {
	Program              program
	Archive, Digest, Sum string
}
