package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/registry"
)

// registryAddress is the address of each node's registry for the suite's images, on the node's loopback: engines use
// plain HTTP there without configuration. Tests with pull policy Always need a registry, and no other is reachable.
const registryAddress = "127.0.0.1:5999"

// Where the suite's images are below their registry: those of tests, and those of CSI drivers.
const (
	testImages    = "e2e-test-images/"
	storageImages = "sig-storage/"
)

const (
	registryList  = "registries.yaml" // tells the suite where its images are
	registryIndex = "registry.json"   // contents of the registries
)

// stored is one image as the registry serves it.
type stored struct {
	Name   string // without the registry address
	Config []byte
	Layers []storedLayer
}

type storedLayer struct {
	Path, Digest string
	Size         int64
}

func newRegistry(images []stored) (*registry.Registry, error) {
	r := registry.New(registry.Open)
	for _, img := range images {
		var layers []registry.Layer
		for _, l := range img.Layers {
			layers = append(layers, registry.Layer{Path: l.Path, Digest: "sha256:" + l.Digest, Size: l.Size})
		}
		if _, err := r.Add(img.Name, img.Config, layers...); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// serveRegistry runs a registry in a node's network until it is killed.
func serveRegistry(dir string) error {
	var images []stored
	if err := readJSON(filepath.Join(dir, registryIndex), &images); err != nil {
		return err
	}
	r, err := newRegistry(images)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: registryAddress, Handler: r, ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}

// startRegistries runs a registry on every node until stop is called.
func startRegistries(ctx context.Context, cluster *lab.Cluster) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running []*exec.Cmd
	stop = func() {
		cancel()
		for _, cmd := range running {
			_ = cmd.Wait()
		}
	}
	for _, node := range cluster.Nodes {
		// nsenter execs the program: killing one kills the other.
		cmd := node.Command(ctx, self, "-serve-images", imagesDir(cluster))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			stop()
			return nil, fmt.Errorf("cannot start a registry on %s: %w", node.Name, err)
		}
		running = append(running, cmd)
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := node.Exec(ctx, filepath.Join(cluster.Tools, "sample"), "get", "http://"+registryAddress+"/v2/")
			return err == nil, nil
		}); err != nil {
			stop()
			return nil, fmt.Errorf("the registry on %s does not answer: %w", node.Name, err)
		}
	}
	return stop, nil
}

// writeRegistryList replaces upstream's registry with ours for the images that we build.
func writeRegistryList(cluster *lab.Cluster) error {
	text := "promoterE2eRegistry: " + registryAddress + "/" + strings.TrimSuffix(testImages, "/") + "\nsigStorageRegistry: " + registryAddress + "/" + strings.TrimSuffix(storageImages, "/") + "\ngcRegistry: " + registryAddress + "\n"
	return os.WriteFile(filepath.Join(imagesDir(cluster), registryList), []byte(text), 0o644)
}

// suiteEnv returns the suite's environment; the suite builds its image names from the list.
func suiteEnv(cluster *lab.Cluster) []string {
	return append(os.Environ(), "KUBE_TEST_REPO_LIST="+filepath.Join(imagesDir(cluster), registryList))
}

func imagesDir(cluster *lab.Cluster) string { return filepath.Join(cluster.Root, "_output/images") }

// writeIndex writes the list of images that the registries serve.
func writeIndex(cluster *lab.Cluster, images []image) error {
	var index []stored
	for _, img := range images {
		config, err := img.config()
		if err != nil {
			return err
		}
		name, ours := strings.CutPrefix(img.name, registryAddress+"/")
		if !ours {
			return errors.New("the image " + img.name + " is not named for the registry")
		}
		one := stored{Name: name, Config: config}
		for _, l := range img.layers {
			one.Layers = append(one.Layers, storedLayer{l.path, l.digest, l.size})
		}
		index = append(index, one)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(imagesDir(cluster), registryIndex), data, 0o644)
}
