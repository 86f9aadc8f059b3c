package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// SuiteVersion is the release of upstream's end-to-end suite.
const SuiteVersion = kubernetesVersion

// suite holds the programs besides upstream's end-to-end suite: its parallel runner, and the programs of its images.
// Their stamp covers the suite too, which another command builds.
var suite = tool{
	module: "kubernetes",
	packages: []string{
		"github.com/onsi/ginkgo/v2/ginkgo",
		"k8s.io/kubernetes/test/images/agnhost",
		"k8s.io/kubernetes/test/images/nonewprivs",
		"k8s.io/kubernetes/test/images/regression-issue-74839",
	},
	names:   []string{"ginkgo", "agnhost", "nonewprivs", "regression-issue-74839"},
	ldflags: "-s -w",
}

// BuildSuite builds upstream's suite (e2e.test), ginkgo and the programs of the suite's images into Tools, unless they are up to date.
func (c *Cluster) BuildSuite(ctx context.Context) error {
	if err := os.MkdirAll(c.Tools, 0o755); err != nil {
		return err
	}
	if err := c.buildTool(ctx, suite); err != nil {
		return err
	}
	version := "k8s.io/component-base/version."
	t := tool{
		module:   suite.module,
		packages: []string{"k8s.io/kubernetes/test/e2e"},
		names:    []string{"e2e.test"},
		ldflags: "-s -w -X " + version + "gitVersion=v" + kubernetesVersion + " -X " + version + "gitMajor=1 -X " + version +
			"gitMinor=36 -X " + version + "gitTreeState=clean",
	}
	dir, stamp := filepath.Join(c.Root, "hack/tools", t.module), filepath.Join(c.Tools, ".e2e.test.stamp")
	want, err := t.stamp(dir)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want && c.present(t) {
		return nil
	}
	begin := time.Now()
	// Vetting would read every package of the suite again, which takes longer than the rest of the build.
	argv := []string{"go", "test", "-c", "-vet=off", "-trimpath", "-buildvcs=false", "-ldflags", t.ldflags, "-o", filepath.Join(c.Tools, t.names[0]), t.packages[0]}
	defer c.steps.show([]*task{{name: "e2e.test", began: begin, path: filepath.Join(c.Tools, "e2e.test")}})()
	if err := c.logged(ctx, "build-e2e.test", dir, []string{"CGO_ENABLED=0"}, argv...); err != nil {
		return err
	}
	c.steps.note("e2e.test: %.1f s", time.Since(begin).Seconds())
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// SuiteSource returns the directory of upstream's module, which holds files of the suite's images.
func (c *Cluster) SuiteSource(ctx context.Context) (string, error) {
	out, err := run(ctx, "go", "-C", filepath.Join(c.Root, "hack/tools", suite.module), "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	dir := strings.TrimSpace(out)
	if dir == "" {
		return "", fmt.Errorf("the module k8s.io/kubernetes is not in the module cache: run go mod download in hack/tools/%s", suite.module)
	}
	return dir, nil
}

// Note adds a line below the running step.
func (c *Cluster) Note(format string, args ...any) { c.steps.note(format, args...) }

// Logged runs a program and writes its output to a log of that name in the cluster's state. Its error has the log's
// path.
func (c *Cluster) Logged(ctx context.Context, name, dir string, env []string, argv ...string) error {
	return c.logged(ctx, name, dir, env, argv...)
}

// EnginePlatform returns the architecture that images must have.
func EnginePlatform() string { return runtime.GOARCH }
