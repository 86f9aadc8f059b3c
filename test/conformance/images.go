package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/winkube/winkube/test/lab"
)

// image is one image of the suite.
type image struct {
	name       string
	layers     []layer
	entrypoint []string
	cmd        []string
	user       string
}

// maker builds the suite's images in dir (_output/images) and keeps them there.
type maker struct {
	cluster  *lab.Cluster
	dir      string
	upstream string            // the directory of upstream's module
	machine  *lab.Machine      // that needs the images, nil: the nodes do
	tags     map[string]string // upstream's images by name without registry: agnhost:2.63.0 -> 127.0.0.1:5999/e2e-test-images/agnhost:2.63.0
}

// upImages builds missing images and loads them into every engine that lacks them: the nodes', and a machine's if it is not nil. privileged: also
// those of the tests of CSI, which need privileged containers.
func upImages(ctx context.Context, cluster *lab.Cluster, machine *lab.Machine, privileged bool) error {
	m := &maker{cluster: cluster, dir: imagesDir(cluster), machine: machine}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	var err error
	if m.upstream, err = cluster.SuiteSource(ctx); err != nil {
		return err
	}
	if err := writeRegistryList(cluster); err != nil {
		return err
	}
	if m.tags, err = listImages(ctx, cluster); err != nil {
		return err
	}
	var all []image
	type set struct {
		name string
		make func(context.Context) ([]image, error)
	}
	sets := []set{{"debian", m.debianImages}, {"busybox", m.busyboxImages}, {"static", m.staticImages}}
	if privileged {
		sets = append(sets, set{"csi", m.csiImages})
	}
	for _, set := range sets {
		images, err := set.make(ctx)
		if err != nil {
			return fmt.Errorf("images %s: %w", set.name, err)
		}
		if err := m.load(ctx, set.name, images); err != nil {
			return fmt.Errorf("images %s: %w", set.name, err)
		}
		all = append(all, images...)
	}
	return writeIndex(cluster, all)
}

// listImages lists the images that the suite uses.
func listImages(ctx context.Context, cluster *lab.Cluster) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Tools, "e2e.test"), "--list-images")
	cmd.Env = suiteEnv(cluster)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the suite's images: %w", err)
	}
	tags := map[string]string{}
	for _, name := range strings.Fields(string(out)) {
		// Images of manifests are listed by their usual names.
		if of, is := strings.CutPrefix(name, "registry.k8s.io/"); is && (strings.HasPrefix(of, storageImages) || strings.HasPrefix(of, testImages)) {
			name = registryAddress + "/" + of
		}
		tags[path.Base(name)] = name
	}
	return tags, nil
}

// named returns upstream's images with that short name, in every version that the suite uses.
func (m *maker) named(short string) ([]string, error) {
	var names []string
	for base, name := range m.tags {
		// The private image, which tests pull with a secret, must be missing.
		if before, _, _ := strings.Cut(base, ":"); before == short && strings.HasPrefix(name, registryAddress+"/") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("the suite uses no image %s", short)
	}
	slices.Sort(names)
	return names, nil
}

// family adds every version of an image to images.
func (m *maker) family(images []image, short string, img image) ([]image, error) {
	names, err := m.named(short)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		img.name = name
		images = append(images, img)
	}
	return images, nil
}

// layer writes a layer with entries under a name.
func (m *maker) layer(name string, entries []entry) (layer, error) {
	return writeLayer(filepath.Join(m.dir, "layer-"+name+".tar"), entries)
}

// read returns an entry with a file's content.
func read(name string, mode int64, file string) (entry, error) {
	data, err := os.ReadFile(file)
	return entry{name: name, mode: mode, data: data}, err
}

// debianImages returns agnhost and all images that equal it or add files to its file system.
func (m *maker) debianImages(ctx context.Context) ([]image, error) {
	root, err := m.debianRoot(ctx)
	if err != nil {
		return nil, err
	}
	busybox, _, err := m.busyboxProgram(ctx)
	if err != nil {
		return nil, err
	}
	entries := agnhostEntries(busybox)
	for _, file := range []struct {
		name string
		mode int64
		from string
	}{
		{"agnhost", 0o755, filepath.Join(m.cluster.Tools, "agnhost")},
		{"coredns", 0o755, filepath.Join(m.cluster.Tools, "coredns")},
		{"localhost.crt", 0o644, filepath.Join(m.upstream, "test/images/agnhost/porter/localhost.crt")},
		{"localhost.key", 0o644, filepath.Join(m.upstream, "test/images/agnhost/porter/localhost.key")},
	} {
		e, err := read(file.name, file.mode, file.from)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	program, err := m.layer("agnhost", entries)
	if err != nil {
		return nil, err
	}
	agnhost := image{layers: []layer{root, program}, entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}}
	images, err := m.family(nil, "agnhost", agnhost)
	if err != nil {
		return nil, err
	}
	// Tests only use its web server on port 80.
	web := agnhost
	web.entrypoint, web.cmd = nil, []string{"/agnhost", "netexec", "--http-port=80"}
	if images, err = m.family(images, "nginx", web); err != nil {
		return nil, err
	}
	if images, err = m.family(images, "glibc-dns-testing", image{layers: []layer{root}, cmd: []string{"/bin/bash"}}); err != nil {
		return nil, err
	}
	for _, name := range []string{"kitten", "nautilus"} {
		pages, err := m.pages(name)
		if err != nil {
			return nil, err
		}
		img := agnhost
		img.layers, img.cmd = []layer{root, program, pages}, []string{"test-webserver"}
		if images, err = m.family(images, name, img); err != nil {
			return nil, err
		}
	}
	return images, nil
}

// agnhostEntries returns the files of agnhost's image besides Debian and the programs. Upstream's image is based on
// Alpine, where busybox provides shell and wget. Tests need $RANDOM in the shell, and a wget that does not retry. In
// Debian /bin is a link, which an entry below it would replace.
func agnhostEntries(busybox []byte) []entry {
	return []entry{
		{name: "uploads/", mode: 0o777}, {name: "agnhost-2", link: "agnhost"},
		{name: "usr/bin/busybox", mode: 0o755, data: busybox}, {name: "usr/bin/sh", link: "busybox"}, {name: "usr/bin/wget", link: "busybox"},
	}
}

// pages returns the files that kitten and nautilus serve. The test of image volumes reads the OS that upstream's images
// are built on.
func (m *maker) pages(name string) (layer, error) {
	entries := []entry{{name: "etc/os-release", mode: 0o644, data: []byte("NAME=\"Alpine Linux\"\nID=alpine\n")}}
	for _, file := range []string{name + ".jpg", "data.json"} {
		e, err := read(file, 0o644, filepath.Join(m.upstream, "test/images", name, "html", file))
		if err != nil {
			return layer{}, err
		}
		entries = append(entries, e)
	}
	return m.layer(name, entries)
}

func (m *maker) busyboxImages(ctx context.Context) ([]image, error) {
	program, links, err := m.busyboxProgram(ctx)
	if err != nil {
		return nil, err
	}
	entries := []entry{
		{name: "bin/", mode: 0o755}, {name: "etc/", mode: 0o755}, {name: "home/", mode: 0o755}, {name: "root/", mode: 0o700},
		{name: "tmp/", mode: 0o1777}, {name: "usr/", mode: 0o755}, {name: "usr/bin/", mode: 0o755}, {name: "usr/sbin/", mode: 0o755},
		{name: "usr/bin/env", link: "/bin/env"}, {name: "var/", mode: 0o755}, {name: "var/spool/", mode: 0o755}, {name: "var/www/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nbin:x:2:2:bin:/bin:/bin/false\nwww-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n")},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\ndaemon:x:1:\nbin:x:2:\nwheel:x:10:root\nwww-data:x:33:\nnobody:x:65534:\n")},
		{name: "etc/os-release", mode: 0o644, data: []byte("NAME=BusyBox\n")},
		{name: "bin/busybox", mode: 0o755, data: program},
	}
	for _, link := range links {
		if link != "busybox" {
			entries = append(entries, entry{name: "bin/" + link, link: "busybox"})
		}
	}
	root, err := m.layer("busybox", entries)
	if err != nil {
		return nil, err
	}
	img := image{layers: []layer{root}, cmd: []string{"sh"}}
	images, err := m.family(nil, "busybox", img)
	if err != nil {
		return nil, err
	}
	img.user = "1234"
	return m.family(images, "nonroot", img)
}

// csiImages returns the images of a CSI driver's pod: upstream's sidecars and mock driver, and csipod in place of the registrar, which is no module.
func (m *maker) csiImages(ctx context.Context) ([]image, error) {
	programs, err := m.cluster.BuildCSIPod(ctx)
	if err != nil {
		return nil, err
	}
	var images []image
	for short, names := range map[string][]string{
		"csi-attacher": {"csi-attacher"}, "csi-provisioner": {"csi-provisioner"}, "csi-resizer": {"csi-resizer"}, "csi-snapshotter": {"csi-snapshotter"},
		"csi-node-driver-registrar": {"csipod"}, "hostpathplugin": {"mockdriver", "csipod"},
	} {
		entries := []entry{{name: "tmp/", mode: 0o1777}}
		for _, name := range names {
			program, err := read(name, 0o755, programs[name])
			if err != nil {
				return nil, err
			}
			entries = append(entries, program)
		}
		l, err := m.layer(short, entries)
		if err != nil {
			return nil, err
		}
		if images, err = m.family(images, short, image{layers: []layer{l}, entrypoint: []string{"/" + names[0]}}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(images, func(a, b image) int { return strings.Compare(a.name, b.name) })
	return images, nil
}

// staticImages returns the images with one static program each.
func (m *maker) staticImages(context.Context) ([]image, error) {
	var images []image
	for _, one := range []struct {
		short, program, at string
		mode               int64
		entrypoint         bool
	}{
		{"pause", "pause", "pause", 0o755, true},
		{"nonewprivs", "nonewprivs", "usr/local/bin/nnp", 0o6755, false},
		{"regression-issue-74839", "regression-issue-74839", "regression-issue-74839", 0o755, true},
	} {
		program, err := read(one.at, one.mode, filepath.Join(m.cluster.Tools, one.program))
		if err != nil {
			return nil, err
		}
		var entries []entry
		for dir := path.Dir(one.at); dir != "."; dir = path.Dir(dir) {
			entries = append([]entry{{name: dir + "/", mode: 0o755}}, entries...)
		}
		l, err := m.layer(one.short, append(entries, entry{name: "etc/", mode: 0o755}, program))
		if err != nil {
			return nil, err
		}
		img := image{layers: []layer{l}, cmd: []string{"/" + one.at}}
		if one.entrypoint {
			img.entrypoint, img.cmd = img.cmd, nil
		}
		if images, err = m.family(images, one.short, img); err != nil {
			return nil, err
		}
	}
	return images, nil
}

// engine is an engine that runs the suite's pods.
type engine interface {
	HasImage(ctx context.Context, name, content string) bool
	Load(ctx context.Context, path string) error
}

func (m *maker) engines() (all []engine) {
	for _, node := range m.cluster.Nodes {
		all = append(all, node.Engine())
	}
	if m.machine != nil {
		all = append(all, m.machine)
	}
	return all
}

// load loads images into each engine that lacks one of them. It writes the archive first if it does not exist.
func (m *maker) load(ctx context.Context, name string, images []image) error {
	var list []built
	for _, img := range images {
		config, err := img.config()
		if err != nil {
			return err
		}
		list = append(list, built{Name: img.name, ID: "sha256:" + sum(config), content: lab.Content(config)})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	archive := filepath.Join(m.dir, name+"-"+sum(text)[:12]+".tar")
	var group errgroup.Group
	for _, engine := range m.engines() {
		missing := ""
		for _, img := range list {
			if missing == "" && !engine.HasImage(ctx, img.Name, img.content) {
				missing = img.Name
			}
		}
		if missing == "" {
			continue
		}
		if _, err := os.Stat(archive); err != nil {
			if err := removeAll(filepath.Join(m.dir, name+"-*.tar")); err != nil {
				return err
			}
			if _, err := writeArchive(archive, images); err != nil {
				return err
			}
		}
		group.Go(func() error { return engine.Load(ctx, archive) })
	}
	return group.Wait()
}
