package programs

import (
	"slices"
	"strings"
	"testing"
)

// TestNodeLeaveKernelspace: `node leave` removes the load balancers of a proxy that was joined with --proxy-mode=kernelspace alone, before it removes their
// network.
func TestNodeLeaveKernelspace(t *testing.T) {
	t.Parallel()
	world, p := simulated(t, server2022)
	w := &walk{T: t, Prefix: p, cluster: layOut(t, p, world)}
	defer w.stop()
	before := world.String()
	if err := w.cluster.Set(served("web", "10.96.0.77", 80, "10.244.2.7:8080")...); err != nil {
		t.Fatal(err)
	}
	args := append(w.toCluster([]string{"node", "join", "10.0.0.1:6443", "--token=abcdef.0123456789abcdef", "--ca-cert-hash=sha256:HASH"}), "--proxy-mode=kernelspace")
	said, err := w.Finish(w.Command(t.Context(), `C:\new\kubelet.exe`, args...)) // its doctor finds what Wine lacks
	if !strings.Contains(said.Stdout, "Node win1: Ready") {
		t.Fatalf("%v: %s", err, said)
	}
	soon(t, world, "load balancer 10.96.0.77 tcp 80 to 8080")
	for round := range 2 {
		t.Logf("\n%s", w.run([]string{`C:\new\kubelet.exe`, "node", "leave"}))
		if after := world.String(); after != before {
			t.Errorf("round %d leaves\n%s\nthere was\n%s", round, after, before)
		}
	}
}

// TestNodeJoinRefusesFlags: what a build cannot do is refused in one line that names the flag, before anything is changed.
func TestNodeJoinRefusesFlags(t *testing.T) {
	t.Parallel()
	world, p := simulated(t, 14393)
	w := &walk{T: t, Prefix: p, cluster: layOut(t, p, world)}
	defer w.stop()
	before, files := world.String(), w.files()
	for _, c := range []struct{ kubelet, proxy, want string }{
		{kubelet: "--network-mode=overlay", want: "flags for the kubelet: --network-mode=overlay needs Windows Server 2019 (build 17763) with the updates from KB4489899 (March 2019) on: HNS of build 14393 does not support subnets of other nodes; want host-gateway or upstream"},
		{kubelet: "--cluster-dns=x", want: "flags for the kubelet: --cluster-dns=x: "},
		{kubelet: `--config=C:\no\such.yaml`, want: "flags for the kubelet: --config"},
		{proxy: "--proxy-mode=kernelspace", want: "--proxy-mode=kernelspace: the HNS of this Windows (build 14393) has no load balancers that can be managed, which needs build 17763 (Server 2019) or later; want --proxy-mode=userspace"},
	} {
		args := w.toCluster([]string{"node", "join", "10.0.0.1:6443", "--token=abcdef.0123456789abcdef", "--ca-cert-hash=sha256:HASH"})
		if c.kubelet != "" {
			args = slices.Insert(args, slices.Index(args, "--")+1, c.kubelet)
		} else {
			args = append(args, c.proxy)
		}
		said, err := w.Finish(w.Command(t.Context(), `C:\new\kubelet.exe`, args...))
		if err == nil || !strings.Contains(said.Stderr, c.want) || strings.Contains(strings.TrimSpace(said.Stderr), "\n") {
			t.Errorf("%s%s: %v: %s", c.kubelet, c.proxy, err, said)
		}
		if after := w.files(); after != files {
			t.Errorf("%s%s changed files\n%s\nthere were\n%s", c.kubelet, c.proxy, after, files)
		}
		if after := world.String(); after != before {
			t.Errorf("%s%s changed\n%s\nthere was\n%s", c.kubelet, c.proxy, after, before)
		}
	}
	for key, value := range w.registered() {
		if value != "" {
			t.Errorf("%s = %s", key, value)
		}
	}
}
