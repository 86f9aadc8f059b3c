package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// TestNodePackage takes a host through docs/guides/install.md with two Debian packages of hack/release: it installs the older one, joins, serves a pod,
// is upgraded and taken back with no container restarted, goes on where an upgrade is cut short or refused, and leaves nothing. WINKUBE_OLDER names the
// commit of the older package; without it that has this checkout's programs under another version.
func TestNodePackage(t *testing.T) {
	s := newSpace(t)
	joiner := cluster.Joiner
	s.must(cluster.UpJoiner(t.Context()))
	p := &packages{space: s, host: joiner}
	p.older, p.newer = p.pack("0.0.1", os.Getenv("WINKUBE_OLDER")), p.pack("99.0.0", "")
	s.bareJoiner()
	remove, err := cluster.JoinerUsr(t.Context())
	s.must(err)
	t.Cleanup(func() {
		if t.Failed() { // the proxy's routes would be there before the next test
			_, _ = joiner.Shell(context.Background(), "/usr/bin/kubelet node leave --docker-endpoint=unix://"+joiner.EngineSocket()+" --remove-data")
		}
		s.must(remove(context.Background()))
	})
	before := s.hostState(joiner)

	p.run("dpkg -i " + p.older)
	if got := p.run("systemctl is-active kubelet || true; systemctl is-active proxy || true"); got != "inactive\ninactive\n" {
		t.Errorf("after the installation kubelet and proxy are %q; want nothing started", got)
	}
	p.join()
	p.serve()
	p.changes("dpkg -i "+p.newer, "99.0.0", "")
	p.changes("dpkg -i "+p.older, "0.0.1", "downgrading winkube from 99.0.0-1 to 0.0.1-1")
	p.goesOn()
	p.changes("dpkg --configure -a", "99.0.0", "")
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "kept", metav1.DeleteOptions{}))
	p.removes(before)
}

// packages are a host, an older and a newer package on its way, and what must not change.
type packages struct {
	*space
	host         *lab.Host
	older, newer string // files
	address      string // of the pod's Service
	containers   []string
}

// run runs a line on the host and returns what it prints.
func (p *packages) run(line string) string {
	p.Helper()
	out, err := p.host.Shell(p.Context(), "exec 2>&1; "+line)
	p.Logf("$ %s\n%s", line, out)
	if err != nil {
		p.Fatal(err)
	}
	return out
}

// pack makes a Debian package of a commit ("": of this checkout) with programs of a version, and returns its file.
func (p *packages) pack(version, commit string) string {
	p.Helper()
	begin, dir, root := time.Now(), p.TempDir(), cluster.Root
	if commit != "" {
		root = filepath.Join(dir, "checkout")
		p.must(cluster.Logged(p.Context(), "package", cluster.Root, nil, "git", "worktree", "add", "--detach", "--quiet", root, commit))
		p.Cleanup(func() {
			p.must(cluster.Logged(context.Background(), "package", cluster.Root, nil, "git", "worktree", "remove", "--force", root))
		})
	}
	programs, tool := filepath.Join(dir, "programs"), filepath.Join(dir, "release")
	for name, pkg := range map[string]string{"kubelet": "./cmd/kubelet", "proxy": "./cmd/kube-proxy"} { // with the flags of hack/build.sh
		p.must(cluster.Logged(p.Context(), "package", root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace",
			"-ldflags=-s -w -X github.com/winkube/winkube/pkg/daemon.Version="+version, "-o", filepath.Join(programs, name), pkg))
	}
	p.must(cluster.Logged(p.Context(), "package", cluster.Root, nil, "go", "build", "-o", tool, "./hack/release"))
	p.must(cluster.Logged(p.Context(), "package", root, nil, tool, "-dirty", "-only=deb", "-programs="+programs, "-version="+version, "-out="+filepath.Join(dir, "out")))
	file := filepath.Join(dir, "out", fmt.Sprintf("winkube_%s-1_%s.deb", version, runtime.GOARCH))
	info, err := os.Stat(file)
	p.must(err)
	p.Logf("%s: %.1f MB, made in %.0f s", filepath.Base(file), float64(info.Size())/1e6, time.Since(begin).Seconds())
	return file
}

// join makes the host a node with the package's programs.
func (p *packages) join() {
	p.Helper()
	_, err := cluster.Kubectl(p.Context(), "apply", "-f", filepath.Join(cluster.Root, "build/kubernetes/node-join.yaml"))
	p.must(err)
	words, err := cluster.JoinArguments()
	p.must(err)
	line := fmt.Sprintf("/usr/bin/kubelet node join %s --node-name=%s --node-ip=%s -- '%s' -- --network-mode=%s", words, p.host.Name, p.host.Addr,
		strings.ReplaceAll(cluster.JoinerFlags(), " ", "' '"), cluster.NetworkMode)
	said, err := p.host.Shell(p.Context(), line)
	p.Logf("$ %s\n%s", line, said)
	if err != nil && !strings.Contains(err.Error(), "faults found") { // the doctor reports what lab hosts lack
		p.Fatal(err)
	}
}

// serve starts a pod and its Service.
func (p *packages) serve() {
	p.Helper()
	p.create(p.pod("kept", p.host, "serve", "8080"))
	p.ready("kept")
	p.address = p.service("kept", 8080)
	p.served()
	p.eventually(2*time.Minute, "each pod of the node has two containers", func(ctx context.Context) error { // of a DaemonSet, too
		pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + p.host.Name})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if err := isReady(&pods.Items[i]); err != nil {
				return err
			}
		}
		if p.containers = p.running(p.host); len(p.containers) != 2*len(pods.Items) {
			err = fmt.Errorf("%d pods have %d", len(pods.Items), len(p.containers))
		}
		return err
	})
}

// served waits until the Service answers on the host.
func (p *packages) served() {
	p.Helper()
	p.eventually(2*time.Minute, "the Service answers", func(ctx context.Context) error {
		page, err := ask(ctx, p.host, "http://"+p.address+"/hostname")
		if err == nil && !strings.HasPrefix(page, "kept") {
			err = fmt.Errorf("it answers %q", page)
		}
		return err
	})
}

// kept checks that the pods' containers are those of before.
func (p *packages) kept() {
	p.Helper()
	if now := p.running(p.host); !slices.Equal(now, p.containers) {
		p.Errorf("containers were %q, are %q", p.containers, now)
	}
	for _, status := range p.get("kept").Status.ContainerStatuses {
		if status.RestartCount != 0 || status.State.Running == nil {
			p.Errorf("the pod's container: %+v", status)
		}
	}
}

// changes runs a line that has both programs replaced: they run in that version afterwards, the Node reports, and no container noticed.
func (p *packages) changes(line, version, says string) {
	p.Helper()
	processes, began := p.run("cat /run/kubelet.pid /run/proxy.pid"), time.Now()
	if out := p.run(line); !strings.Contains(out, says) || strings.Contains(out, "did not restart") {
		p.Errorf("%s says\n%s\nwant %q", line, out, says)
	}
	if now := p.run("cat /run/kubelet.pid /run/proxy.pid"); now == processes {
		p.Errorf("after %s the processes are still %q", line, now)
	}
	for _, name := range []string{"kubelet", "proxy"} {
		if out := p.run(fmt.Sprintf("/proc/$(cat /run/%s.pid)/exe --version=full", name)); !strings.Contains(out, "\nwinkube "+version+"\n") {
			p.Errorf("after %s the running %s is\n%s\nwant version %s", line, name, out, version)
		}
	}
	p.reports(began)
	p.served()
	p.kept()
	p.Logf("%s: %.1f s", line, time.Since(began).Seconds())
}

// reports waits until the Node is Ready, by a kubelet that has renewed its Lease since.
func (p *packages) reports(since time.Time) {
	p.Helper()
	p.eventually(2*time.Minute, "the Node's Lease renewed", func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, p.host.Name, metav1.GetOptions{})
		if err == nil && renewed(lease).Before(since) {
			err = fmt.Errorf("it is of %s", renewed(lease))
		}
		return err
	})
	p.nodeReady(p.host.Name, true, time.Minute)
}

func renewed(lease *coordination.Lease) time.Time {
	if lease.Spec.RenewTime == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Time
}

// goesOn: what is refused, or cut short, leaves a node that serves. The packages are then unpacked but not configured.
func (p *packages) goesOn() {
	p.Helper()
	half := filepath.Join(p.TempDir(), "half.deb")
	data, err := os.ReadFile(p.newer)
	p.must(err)
	p.must(os.WriteFile(half, data[:len(data)/2], 0o644))
	processes := p.run("cat /run/kubelet.pid /run/proxy.pid")
	if out := p.run("dpkg -i " + half + " || true"); !strings.Contains(out, "unexpected end of file") {
		p.Errorf("half a package is refused with\n%s", out)
	}
	if now := p.run("cat /run/kubelet.pid /run/proxy.pid"); now != processes {
		p.Errorf("half a package has changed the processes %q to %q", processes, now)
	}
	p.served()
	p.kept()

	p.run("dpkg --unpack " + p.newer) // as if power fails before the package's scripts run
	began := time.Now()
	p.run("for name in kubelet proxy; do kill -KILL $(cat /run/$name.pid) && tail --pid=$(cat /run/$name.pid) -f /dev/null; systemctl start $name; done")
	p.reports(began)
	p.served()
	p.kept()
}

// removes has the host leave and the package purged: what was there before is there, and nothing else.
func (p *packages) removes(before string) {
	p.Helper()
	p.run("/usr/bin/kubelet node leave --docker-endpoint=unix://" + p.host.EngineSocket() + " --remove-data")
	// A purge keeps what a running kubelet may need, and the other hosts of the cluster have theirs in the same processes.
	if out := p.run("unshare --pid --fork --mount-proc dpkg -P winkube"); strings.Contains(out, "winkube: ") {
		p.Errorf("the purge says\n%s\nand has no reason to keep anything", out)
	}
	if after := p.hostState(p.host); after != before {
		p.Errorf("left:\n%s\nthere was before\n%s", after, before)
	}
	if left, err := cluster.JoinerUsrFiles(); err != nil || len(left) > 0 {
		p.Errorf("left in /usr: %q, %v", left, err)
	}
}
