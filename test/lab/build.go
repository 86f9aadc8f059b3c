package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// tool is a set of programs of one module, built together.
type tool struct {
	module   string // directory below hack/tools; "" is our own module
	packages []string
	names    []string // of the programs, one per package
	ldflags  string
	dir      string   // below Tools; "": Tools itself
	flags    []string // for go build, besides ldflags
	cgo      bool
}

const kubernetesVersion = "1.36.3"

func tools() []tool {
	return []tool{
		{
			module: "kubernetes",
			packages: []string{
				"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager",
				"k8s.io/kubernetes/cmd/kube-scheduler", "k8s.io/kubernetes/cmd/kubectl",
			},
			names:   []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"},
			ldflags: versionFlags("36", kubernetesVersion),
		},
		{module: "etcd", packages: []string{"go.etcd.io/etcd/server/v3"}, names: []string{"etcd"}, ldflags: "-s -w"},
		{module: "coredns", packages: []string{"github.com/coredns/coredns"}, names: []string{"coredns"}, ldflags: "-s -w"},
	}
}

// own are our programs that run on hosts or in images; go build checks whether they are up to date.
var own = tool{
	packages: []string{"./hack/cluster", "./build/images/sample", "./build/images/pause", "./test/engineproxy", "./test/csipod"},
	names:    []string{"cluster", "sample", "pause", "engineproxy", "csipod"},
	ldflags:  "-s -w",
}

// csiDriver is separate from own because several packages that are built together keep their directories' names.
var csiDriver = tool{packages: []string{"./test/csidriver/program"}, names: []string{"csidriver"}, ldflags: "-s -w"}

// metricsServer is not part of the cluster; a test runs it.
var metricsServer = tool{
	module: "metrics-server", packages: []string{"sigs.k8s.io/metrics-server/cmd/metrics-server"}, names: []string{"metrics-server"}, ldflags: "-s -w",
}

// BuildMetricsServer builds metrics-server into Tools, unless it is up to date.
func (c *Cluster) BuildMetricsServer(ctx context.Context) error {
	return c.buildTool(ctx, metricsServer)
}

// metalLB announces addresses of load balancers; a test runs it.
var metalLB = tool{
	module: "metallb", dir: "metallb", ldflags: "-s -w", names: []string{"speaker", "controller"},
	packages: []string{"go.universe.tf/metallb/speaker", "go.universe.tf/metallb/controller"},
}

// LoadMetalLB builds MetalLB and loads its images, which have the names of its programs, into every node's engine.
func (c *Cluster) LoadMetalLB(ctx context.Context) error {
	if err := c.buildTool(ctx, metalLB); err != nil {
		return err
	}
	for _, name := range metalLB.names {
		img := image{name: MetalLBImage(name), program: name, entrypoint: []string{"/" + name}}
		if err := c.upImage(ctx, img, filepath.Join(c.Tools, metalLB.dir), c.Nodes); err != nil {
			return err
		}
	}
	return nil
}

// MetalLBImage returns the image of one of MetalLB's programs, speaker or controller.
func MetalLBImage(program string) string { return "winkube/metallb-" + program + ":0.15.2" }

// kubeRouter enforces NetworkPolicies; a test runs it.
var kubeRouter = tool{
	module: "kube-router", packages: []string{"github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}, names: []string{"kube-router"}, ldflags: "-s -w",
}

// KubeRouterImage is kube-router without the programs that it runs: the host's /usr and /etc/alternatives have them.
const KubeRouterImage = "winkube/kube-router:2.1.0"

// LoadKubeRouter installs ipset, builds kube-router and loads its image into every node's engine.
func (c *Cluster) LoadKubeRouter(ctx context.Context) error {
	if err := c.logged(ctx, "packages", c.Root, nil, "hack/ensure-packages.sh", "policy"); err != nil {
		return err
	}
	if err := c.buildTool(ctx, kubeRouter); err != nil {
		return err
	}
	return c.upImage(ctx, image{name: KubeRouterImage, program: "kube-router", entrypoint: []string{"/kube-router"}, hostPrograms: true}, c.Tools, c.Nodes)
}

// Build builds what is missing or outdated: the control plane, etcd, CoreDNS, the images' programs, and kubelet and proxy.
func (c *Cluster) Build(ctx context.Context) error {
	if err := c.buildTools(ctx); err != nil {
		return err
	}
	return c.BuildAgents(ctx)
}

// BuildAgents builds kubelet and proxy as `make` does.
func (c *Cluster) BuildAgents(ctx context.Context) error {
	return c.build(ctx, "agents", c.Root, filepath.Dir(c.Binary("kubelet")), []string{"./cmd/kubelet", "./cmd/kube-proxy"}, []string{"kubelet", "proxy"},
		[]string{"-tags=grpcnotrace"}, []string{"CGO_ENABLED=0", "GOFLAGS=" + os.Getenv("GOFLAGS") + " -v"}, "hack/build.sh")
}

// Binary returns the path of a program that `make` builds: kubelet or proxy.
func (c *Cluster) Binary(name string) string {
	return filepath.Join(c.Root, "_output/bin/linux", runtime.GOARCH, name)
}

func (c *Cluster) buildTools(ctx context.Context) error {
	if err := os.MkdirAll(c.Tools, 0o755); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(2)
	for _, t := range tools() {
		group.Go(func() error { return c.buildTool(ctx, t) })
	}
	group.Go(func() error { return errors.Join(c.buildTool(ctx, own), c.buildTool(ctx, csiDriver)) })
	return group.Wait()
}

// buildTool builds a tool unless its stamp shows that the existing programs come from the same inputs.
func (c *Cluster) buildTool(ctx context.Context, t tool) error {
	dir := filepath.Join(c.Root, "hack/tools", t.module)
	if t.module == "" {
		dir = c.Root
	}
	into := filepath.Join(c.Tools, t.dir)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	stamp := filepath.Join(into, "."+t.names[0]+".stamp")
	want, err := t.stamp(dir)
	if err != nil {
		return err
	}
	if t.module != "" && c.present(t) {
		if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
			return nil
		}
	}
	out := into + "/"
	if len(t.names) == 1 {
		out += t.names[0] // etcd's package has a different name
	}
	argv := slices.Concat([]string{"go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", t.ldflags, "-o", out}, t.flags, t.packages)
	env := "CGO_ENABLED=0"
	if t.cgo {
		env = "CGO_ENABLED=1"
	}
	begin := time.Now()
	if err := c.build(ctx, "build-"+strings.ReplaceAll(filepath.Join(t.dir, t.names[0]), "/", "-"), dir, into, t.packages, t.names, t.flags, []string{env}, argv...); err != nil {
		return err
	}
	if took := time.Since(begin); took > 2*time.Second {
		c.steps.note("%s: %.1f s", strings.Join(t.names, ", "), took.Seconds())
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

func (c *Cluster) present(t tool) bool {
	for _, name := range t.names {
		if _, err := os.Stat(filepath.Join(c.Tools, t.dir, name)); err != nil {
			return false
		}
	}
	return true
}

// stamp returns a digest of a build's inputs: module versions, flags, Go release and platform.
func (t tool) stamp(dir string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, t.packages, t.ldflags, runtime.Version(), runtime.GOARCH)
	if len(t.flags) > 0 {
		fmt.Fprintln(hash, t.flags)
	}
	files := []string{"go.mod", "go.sum"}
	for _, p := range t.packages { // a program of ours in the module has one file
		if own, ok := strings.CutPrefix(p, "github.com/winkube/winkube/hack/tools/"+t.module+"/"); ok {
			files = append(files, filepath.Join(own, "main.go"))
		}
	}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("cannot build %s: %w", strings.Join(t.names, ", "), err)
		}
		hash.Write(data)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// logged runs a program and writes its output to a log of that name in the cluster's state.
func (c *Cluster) logged(ctx context.Context, name, dir string, env []string, argv ...string) error {
	return c.loggedTo(ctx, name, dir, env, nil, argv...)
}

// loggedTo is like logged, with a filter for standard error.
func (c *Cluster) loggedTo(ctx context.Context, name, dir string, env []string, through func(io.Writer) io.WriteCloser, argv ...string) error {
	path := filepath.Join(c.State, "logs", name+".log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), log, log
	err = nil
	if through != nil {
		filter := through(log)
		defer filter.Close()
		cmd.Stderr = filter
	}
	if err := cmd.Run(); err != nil {
		return &LogError{Err: fmt.Errorf("%s: %w", name, err), Log: path}
	}
	return nil
}

// addSystemDirs adds the sbin directories to PATH: root's PATH lacks them after a plain su.
func addSystemDirs() {
	path := filepath.SplitList(os.Getenv("PATH"))
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	_ = os.Setenv("PATH", strings.Join(path, string(filepath.ListSeparator)))
}

// system returns the path of a program installed on the machine.
func system(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return name
}

// ensurePackages installs the Debian packages that hosts need if one of their programs is missing.
func (c *Cluster) ensurePackages(ctx context.Context) error {
	for _, name := range []string{"dockerd", "containerd", "runc", "ip", "iptables", "nft", "conntrack", "nsenter", "setsid", "script"} {
		if _, err := exec.LookPath(name); err != nil {
			c.steps.note("%s was missing: installed by hack/ensure-packages.sh", name)
			return c.logged(ctx, "packages", c.Root, nil, "hack/ensure-packages.sh", "cluster")
		}
	}
	return nil
}
