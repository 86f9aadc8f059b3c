package join

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/rig"
)

// cluster is the lab's cluster; the tests take turns on its Windows hosts.
var (
	cluster *lab.Cluster
	client  kubernetes.Interface
	servers []int          // the servers that join
	bin     string         // the directory of kubelet.exe, proxy.exe and windockerd
	free    chan *lab.Host // hosts without a running test
)

func TestMain(m *testing.M) {
	if os.Getenv("WINKUBE_WINE") == "" || os.Getenv("WINKUBE_E2E") == "" {
		fmt.Println("joining the cluster under Wine: only with WINKUBE_WINE=1 and WINKUBE_E2E=1, as make test-windows has it")
		os.Exit(0)
	}
	code, err := withCluster(context.Background(), m)
	if err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

func withCluster(ctx context.Context, m *testing.M) (int, error) {
	root, err := rig.Root()
	if err != nil {
		return 1, err
	}
	if servers, err = chosen(os.Getenv("WINKUBE_WINDOWS")); err != nil {
		return 1, err
	}
	cluster = lab.New(root, os.Stdout)
	unlock, err := cluster.Lock()
	if err != nil {
		return 1, err
	}
	defer unlock()
	keep := cluster.Running() || os.Getenv("WINKUBE_KEEP") != ""
	built := make(chan error, 1)
	go func() { built <- build(ctx) }() // while the cluster starts
	if err := cluster.Up(ctx); err != nil {
		return 1, err
	}
	hosts := cluster.Windows[:min(len(servers), len(cluster.Windows))]
	if err := cluster.UpWindows(ctx, hosts...); err != nil {
		return 1, err
	}
	free = make(chan *lab.Host, len(hosts))
	for _, host := range hosts {
		free <- host
	}
	if err := cluster.Step(ctx, "DNS of the cluster", upDNS); err != nil {
		return 1, err
	}
	if err := cluster.Step(ctx, "kubeadm: program, objects in the cluster", cluster.UpKubeadm); err != nil {
		return 1, err
	}
	if err := cluster.Step(ctx, "join tokens for the proxy", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "apply", "-f", filepath.Join(cluster.Root, "build/kubernetes/node-join.yaml")) // once in a cluster, as the guide says
		return err
	}); err != nil {
		return 1, err
	}
	if client, err = cluster.Client(); err != nil {
		return 1, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if err := ofAPI.follow(watching, client); err != nil {
		return 1, err
	}
	if err := cluster.Step(ctx, "build kubelet.exe, proxy.exe, windockerd", func(context.Context) error { return <-built }); err != nil {
		return 1, err
	}
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(len(hosts)+1)); err != nil { // they mostly wait
		return 1, err
	}
	code := m.Run()
	fmt.Print(results)
	if !keep {
		err = cluster.Down(ctx)
	}
	return code, err
}

// upDNS deploys the cluster's DNS and waits until it runs. Kubelets look for it and, on Server 2019, write its address into pods' endpoints. A cluster
// that was started here has no samples yet, and so none.
func upDNS(ctx context.Context) error {
	if _, err := cluster.Kubectl(ctx, "apply", "-f", filepath.Join(cluster.Root, "build/samples/coredns.yaml")); err != nil {
		return err
	}
	_, err := cluster.Kubectl(ctx, "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=3m")
	return err
}

// chosen returns the Windows Servers to test: the named ones, or all.
func chosen(names string) ([]int, error) {
	for name := range strings.FieldsSeq(names) {
		if build, err := strconv.Atoi(name); err != nil || !slices.Contains(rig.Builds, build) {
			return nil, fmt.Errorf("WINKUBE_WINDOWS is %q: must be some of %v, or empty for all", names, rig.Builds)
		}
	}
	return rig.Wanted(rig.Builds...), nil
}

// newer is the version of the programs that the services are upgraded to.
const newer = "99.0.0"

// build builds the programs like `make`, but with coverage counters and the patched standard library that Wine needs.
func build(ctx context.Context) error {
	bin = filepath.Join(cluster.Root, "_output/wine/bin")
	overlay, err := rig.Overlay(ctx)
	if err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(cluster.Root, "hack/VERSION"))
	if err != nil {
		return err
	}
	for _, one := range []struct{ exe, pkg, version string }{
		{"kubelet.exe", "./cmd/kubelet", strings.TrimSpace(string(version))}, {"proxy.exe", "./cmd/kube-proxy", strings.TrimSpace(string(version))},
		{"newer/kubelet.exe", "./cmd/kubelet", newer}, {"newer/proxy.exe", "./cmd/kube-proxy", newer},
	} {
		flags := "-ldflags=-s -w -X github.com/winkube/winkube/pkg/daemon.Version=" + one.version
		if err := rig.BuildCounted(ctx, filepath.Join(bin, one.exe), one.pkg, "-overlay="+overlay, flags); err != nil {
			return err
		}
	}
	if err := rig.GoTool(ctx, "kubeadm", "build", "-overlay="+overlay, lab.KubeadmFlags(), "-o", kubeadmPath(), "k8s.io/kubernetes/cmd/kubeadm"); err != nil {
		return err
	}
	return rig.GoLinux(ctx, "build", "-o", filepath.Join(bin, "windockerd"), "./test/windows/simulators/engine/windockerd")
}

// table holds the results: a line per check, a column per Windows Server.
type table struct {
	mu    sync.Mutex
	rows  []string
	cells map[string]map[int]string
}

var results = &table{cells: map[string]map[int]string{}}

func (t *table) set(check string, build int, cell string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cells[check] == nil {
		t.rows, t.cells[check] = append(t.rows, check), map[int]string{}
	}
	t.cells[check][build] = cell
}

// String returns the table as text.
func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	builds := map[int]bool{}
	for _, row := range t.cells {
		for build := range row {
			builds[build] = true
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nexecuted under Wine (simulated: Windows, its Docker engine, HNS and IP Helper; pods are Linux containers; programs count coverage)\n%-44s", "")
	for _, build := range rig.Builds {
		if builds[build] {
			fmt.Fprintf(&b, " %-20s", strconv.Itoa(build))
		}
	}
	for _, row := range t.rows {
		fmt.Fprintf(&b, "\n%-44s", row)
		for _, build := range rig.Builds {
			if builds[build] {
				fmt.Fprintf(&b, " %-20s", orDash(t.cells[row][build]))
			}
		}
	}
	return b.String() + "\n"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func TestTable(t *testing.T) {
	one := &table{cells: map[string]map[int]string{}}
	one.set("first", 20348, "ok")
	one.set("second", 14393, "1 s")
	lines := strings.Split(one.String(), "\n")
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Join(strings.Fields(l), " ") == "first - ok" }) ||
		!slices.ContainsFunc(lines, func(l string) bool { return strings.Join(strings.Fields(l), " ") == "second 1 s -" }) {
		t.Errorf("the table is\n%s", one)
	}
}
