package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/registry"
)

// imageRegistry is a registry on a node's loopback, where engines use plain HTTP. It has one image, which runs the
// sample, under every added name: each has its own configuration, so that all images differ.
type imageRegistry struct {
	*registry.Registry
	t       *testing.T
	addr    string
	program registry.Layer
}

// newRegistry serves until the test ends. It first removes the registry's images from the node: a reused cluster may
// have those of an earlier run.
func newRegistry(t *testing.T, node *lab.Host, port int, auth registry.Auth) *imageRegistry {
	t.Helper()
	r := &imageRegistry{Registry: registry.New(auth), t: t, addr: fmt.Sprintf("127.0.0.1:%d", port)}
	var layer bytes.Buffer
	sample, err := os.ReadFile(filepath.Join(cluster.Tools, "sample"))
	if err == nil {
		w := tar.NewWriter(&layer)
		err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "sample", Mode: 0o755, Size: int64(len(sample)), Format: tar.FormatUSTAR})
		_, _ = w.Write(sample)
		_ = w.Close()
	}
	var listener net.Listener
	if err == nil {
		listener, err = listenOn(node, r.addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	left, err := node.Engine().Images(t.Context())
	for _, image := range left {
		if strings.HasPrefix(image, r.addr+"/") {
			err = errors.Join(err, node.Engine().RemoveImage(t.Context(), image))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	r.program = registry.LayerOf(layer.Bytes())
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // it ends with the server
	t.Cleanup(func() { _ = server.Close() })
	return r
}

// listenOn opens a port in a node's network.
func listenOn(node *lab.Host, addr string) (listener net.Listener, err error) {
	err = within(node, func() (err error) {
		listener, err = net.Listen("tcp", addr)
		return err
	})
	return listener, err
}

// within runs do in a node's network: a socket stays in the network in which it was opened.
func within(node *lab.Host, do func() error) (err error) {
	return withinNetwork("/run/netns/"+node.Namespace(), do)
}

// withinNetwork runs do in the network namespace that a file stands for.
func withinNetwork(path string, do func() error) (err error) {
	done := make(chan struct{})
	go func() { // its thread is in the other network and ends with it
		defer close(done)
		runtime.LockOSThread()
		var network netns.NsHandle
		if network, err = netns.GetFromPath(path); err != nil {
			return
		}
		defer network.Close()
		if err = netns.Set(network); err == nil {
			err = do()
		}
	}()
	<-done
	return err
}

// add adds an image and returns its name for pods and the manifest's digest.
func (r *imageRegistry) add(name string) (image, digest string) { return r.addWith(name, nil) }

// addWith is add for an image with additional configuration.
func (r *imageRegistry) addWith(name string, more map[string]any) (image, digest string) {
	says := map[string]any{"Entrypoint": []string{"/sample"}, "Labels": map[string]string{"name": name}}
	maps.Copy(says, more)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": says,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{r.program.Digest}},
	})
	if err == nil {
		digest, err = r.Add(name, config, r.program)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return r.addr + "/" + name, digest
}

// pulls returns when an image was pulled: engines send several requests per pull, but not seconds apart.
func (r *imageRegistry) pulls(name string) (begun []time.Time) {
	var last time.Time
	for _, at := range r.Requests(name) {
		if at.Sub(last) > 6*time.Second {
			begun = append(begun, at)
		}
		last = at
	}
	return begun
}
