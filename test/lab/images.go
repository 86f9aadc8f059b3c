package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// The images that this repository builds. There is no registry: they are loaded into every engine.
const (
	PauseImage   = "winkube/pause:1"
	SampleImage  = "winkube/sample:1"
	CoreDNSImage = "winkube/coredns:1.14.7"
	// CSIDriverImage and CSIPodImage are loaded by LoadCSIDriver alone.
	CSIDriverImage = "winkube/csidriver:1"
	CSIPodImage    = "winkube/csipod:1"
)

// image is a program on an otherwise almost empty file system.
type image struct {
	name       string
	program    string // below Tools; placed in the image's root directory
	links      []string
	entrypoint []string
	cmd        []string
	// hostPrograms: it runs programs of the host, whose /usr is mounted at /usr.
	hostPrograms bool
}

func images() []image {
	return []image{
		{name: PauseImage, program: "pause", entrypoint: []string{"/pause"}},
		{name: SampleImage, program: "sample", links: []string{"bin/sh"}, entrypoint: []string{"/sample"}, cmd: []string{"serve"}},
		{name: CoreDNSImage, program: "coredns", entrypoint: []string{"/coredns"}},
	}
}

// LoadProxy loads an image of the proxy into every node's engine, with the files that the image of a release has.
func (c *Cluster) LoadProxy(ctx context.Context, name string) error {
	img := image{name: name, program: "proxy", entrypoint: []string{"/proxy"}, hostPrograms: true}
	return c.upImage(ctx, img, filepath.Dir(c.Binary("proxy")), c.Nodes)
}

// LoadCSIDriver loads the images of a pod of the tests' CSI driver into every node's engine.
func (c *Cluster) LoadCSIDriver(ctx context.Context) error {
	for _, img := range []image{
		{name: CSIDriverImage, program: "csidriver", entrypoint: []string{"/csidriver"}}, {name: CSIPodImage, program: "csipod", entrypoint: []string{"/csipod"}},
	} {
		if err := c.upImage(ctx, img, c.Tools, c.Nodes); err != nil {
			return fmt.Errorf("image %s: %w", img.name, err)
		}
	}
	return nil
}

// upImages builds every image that a node's engine lacks and loads it there.
func (c *Cluster) upImages(ctx context.Context) error { return c.upImagesOf(ctx, c.Nodes) }

func (c *Cluster) upImagesOf(ctx context.Context, hosts []*Host) error {
	for _, img := range images() {
		if err := c.upImage(ctx, img, c.Tools, hosts); err != nil {
			return fmt.Errorf("image %s: %w", img.name, err)
		}
	}
	return nil
}

func (c *Cluster) upImage(ctx context.Context, img image, programs string, hosts []*Host) error {
	layer, config, err := img.parts(programs)
	if err != nil {
		return err
	}
	var group errgroup.Group
	archive := c.Control.Dir(img.program + ".tar")
	written := false
	for _, node := range hosts {
		engine := node.Engine()
		if engine.HasImage(ctx, img.name, Content(config)) {
			continue
		}
		if !written {
			if err := img.write(archive, layer, config); err != nil {
				return err
			}
			defer os.Remove(archive)
			written = true
		}
		group.Go(func() error { return engine.Load(ctx, archive) })
	}
	return group.Wait()
}

// parts returns the image's file system and configuration for a program below the directory programs.
func (img image) parts(programs string) (layer, config []byte, err error) {
	program, err := os.ReadFile(filepath.Join(programs, img.program))
	if err != nil {
		return nil, nil, err
	}
	if layer, err = img.layer(program); err != nil {
		return nil, nil, err
	}
	config, err = img.config(layer)
	return layer, config, err
}

// layer returns the image's file system as a tar file, with equal bytes for equal programs.
func (img image) layer(program []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	type entry struct {
		header tar.Header
		data   string
	}
	own := entry{tar.Header{Typeflag: tar.TypeReg, Name: img.program, Mode: 0o755}, string(program)}
	passwd := "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
	group := "root:x:0:\nnobody:x:65534:\n"
	add := func(header tar.Header, data string) error {
		header.Size = int64(len(data))
		header.Format = tar.FormatUSTAR
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err := w.Write([]byte(data))
		return err
	}
	files := []entry{
		{tar.Header{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755}, ""},
		{tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}, ""},
		{tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, ""},
		{tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, passwd},
		{tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, group},
		own,
	}
	if img.hostPrograms {
		files = []entry{own}
		for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
			files = append(files, entry{tar.Header{Typeflag: tar.TypeSymlink, Name: dir, Linkname: "usr/" + dir, Mode: 0o777}, ""})
		}
	}
	for _, entry := range files {
		if err := add(entry.header, entry.data); err != nil {
			return nil, err
		}
	}
	for _, link := range img.links {
		if err := add(tar.Header{Typeflag: tar.TypeLink, Name: link, Linkname: img.program, Mode: 0o755}, ""); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// config returns the image's configuration; with a graph driver its digest is the image ID.
func (img image) config(layer []byte) ([]byte, error) {
	path := "/bin:/"
	if img.hostPrograms {
		path = "/usr/sbin:/usr/bin"
	}
	return Seal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"created":      "1970-01-01T00:00:00Z",
		"config": map[string]any{
			"Env":        []string{"PATH=" + path},
			"Entrypoint": img.entrypoint,
			"Cmd":        img.cmd,
			"WorkingDir": "/",
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
}

// contentLabel is the label by which Engine.HasImage recognizes an image. The image ID does not suffice: in
// containerd's store it is the digest of a manifest that the engine writes when it loads the image.
const contentLabel = "org.winkube.content"

// Seal marshals an image's configuration with a label that identifies the rest of it, see Content.
func Seal(config map[string]any) ([]byte, error) {
	plain, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	inner := config["config"].(map[string]any)
	labels, _ := inner["Labels"].(map[string]string)
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[contentLabel] = digest(plain)
	inner["Labels"] = labels
	return json.Marshal(config)
}

// Content returns the label that Seal added to a configuration; "" if there is none.
func Content(config []byte) string {
	var image struct {
		Config struct{ Labels map[string]string } `json:"config"`
	}
	_ = json.Unmarshal(config, &image) // a configuration without Seal's label has no content
	return image.Config.Labels[contentLabel]
}

// write writes the file that an engine loads, in the format of `docker save`.
func (img image) write(path string, layer, config []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	configName, layerName := digest(config)+".json", digest(layer)+"/layer.tar"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": []string{img.name}, "Layers": []string{layerName}}})
	if err != nil {
		return err
	}
	w := tar.NewWriter(file)
	for _, entry := range []struct {
		name string
		data []byte
	}{{configName, config}, {layerName, layer}, {"manifest.json", manifest}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: entry.name, Mode: 0o644, Size: int64(len(entry.data)), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := w.Write(entry.data); err != nil {
			return err
		}
	}
	return w.Close()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
