// Package podlink compares the time to set up a pod's network in two ways: the engine connects the container to its
// bridge network, or the kubelet creates the network and the engine starts the container without one.
package podlink

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/vishvananda/netlink"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/network/podlink"
)

const (
	bridge = "wkbench0"
	rounds = 20
)

var subnet = netip.MustParsePrefix("10.199.0.0/24")

// rig is an engine and the image to start.
type rig struct {
	*testing.T
	engine *client.Client
	image  string
	kernel podlink.Kernel
	links  *podlink.Links
}

// TestAgainstEngine prints the time to start an infra container with a network in both ways, in turn, and the time to
// stop it. Run it in the engine's network namespace:
//
//	WINKUBE_BENCH_ENGINE=unix:///run/docker.sock WINKUBE_BENCH_IMAGE=registry.k8s.io/pause:3.10 go test -v ./test/bench/podlink
func TestAgainstEngine(t *testing.T) {
	host, image := os.Getenv("WINKUBE_BENCH_ENGINE"), os.Getenv("WINKUBE_BENCH_IMAGE")
	if host == "" || image == "" {
		t.Skip("needs an engine and an image that waits: set WINKUBE_BENCH_ENGINE and WINKUBE_BENCH_IMAGE")
	}
	engine, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, engine: engine, image: image, kernel: hostnet.PodLinks()}
	r.prepare()
	times := map[string][]time.Duration{}
	for i := range rounds {
		ways := []string{"engine", "kubelet"}
		if i%2 == 1 {
			slices.Reverse(ways)
		}
		for _, way := range ways {
			for name, took := range r.run(way) {
				times[way+" "+name] = append(times[way+" "+name], took)
			}
		}
	}
	for _, name := range []string{"engine start", "kubelet start", "kubelet network", "engine end", "kubelet end"} {
		all := times[name]
		slices.Sort(all)
		t.Logf("%-16s p50 %4d ms, least %4d ms, most %4d ms", name, all[len(all)/2].Milliseconds(), all[0].Milliseconds(), all[len(all)-1].Milliseconds())
	}
}

// prepare creates both bridges.
func (r *rig) prepare() {
	r.Helper()
	ctx := context.Background()
	if ports, err := r.kernel.Ports(); err != nil || len(ports) > 0 {
		r.Fatalf("this network namespace has pods: %v, %v", ports, err)
	}
	_, err := r.engine.NetworkCreate(ctx, "wkbench", network.CreateOptions{Driver: "bridge", Options: map[string]string{"com.docker.network.bridge.name": "wkbench1"},
		IPAM: &network.IPAM{Config: []network.IPAMConfig{{Subnet: "10.198.0.0/24"}}}})
	if err != nil {
		r.Fatal(err)
	}
	n := podlink.Network{Bridge: bridge, MTU: 1500, Ranges: []podlink.Range{{Subnet: subnet, Gateway: subnet.Addr().Next()}}}
	if err := r.kernel.MakeBridge(n); err != nil {
		r.Fatal(err)
	}
	r.links = podlink.New(r.kernel)
	r.links.Use(n, podlink.Others{})
	if err := r.links.Load(ctx); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := r.engine.NetworkRemove(ctx, "wkbench"); err != nil {
			r.Error(err)
		}
		link, err := netlink.LinkByName(bridge)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			r.Error(err)
		}
	})
}

// run starts a container with a network and stops it.
func (r *rig) run(way string) map[string]time.Duration {
	r.Helper()
	ctx, out := context.Background(), map[string]time.Duration{}
	mode := "none"
	if way == "engine" {
		mode = "wkbench"
	}
	made, err := r.engine.ContainerCreate(ctx, &container.Config{Image: r.image}, &container.HostConfig{NetworkMode: container.NetworkMode(mode)}, nil, nil, "")
	if err != nil {
		r.Fatal(err)
	}
	began := time.Now()
	if err := r.engine.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		r.Fatal(err)
	}
	if way == "kubelet" {
		in, err := r.engine.ContainerInspect(ctx, made.ID)
		if err != nil {
			r.Fatal(err)
		}
		begun := time.Now()
		if _, err := r.links.Add(ctx, cni.Attachment{ContainerID: made.ID, Netns: fmt.Sprintf("/proc/%d/ns/net", in.State.Pid)}); err != nil {
			r.Fatal(err)
		}
		out["network"] = time.Since(begun)
	}
	out["start"] = time.Since(began)
	began = time.Now()
	if way == "kubelet" {
		if err := r.links.Del(ctx, made.ID, ""); err != nil {
			r.Fatal(err)
		}
	}
	if err := r.engine.ContainerKill(ctx, made.ID, "KILL"); err != nil {
		r.Fatal(err)
	}
	waits, failed := r.engine.ContainerWait(ctx, made.ID, container.WaitConditionNotRunning)
	select {
	case <-waits:
	case err := <-failed:
		r.Fatal(err)
	}
	out["end"] = time.Since(began)
	if err := r.engine.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}); err != nil {
		r.Fatal(err)
	}
	return out
}
