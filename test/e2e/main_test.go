package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/lab/check"
)

// All tests share the machine's only cluster; each works in its own namespace and restores the cluster.
var (
	cluster *lab.Cluster
	client  kubernetes.Interface
	// spent says that a test has changed the cluster in a way that nothing undoes: it is removed at the end.
	spent bool
)

func TestMain(m *testing.M) {
	if os.Getenv("WINKUBE_E2E") == "" {
		fmt.Println("end-to-end tests: only with WINKUBE_E2E=1, as make test has it")
		os.Exit(0)
	}
	os.Exit(withCluster(m))
}

func withCluster(m *testing.M) int {
	ctx := context.Background()
	root, err := lab.FindRoot()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	cluster = lab.New(root, os.Stdout)
	unlock, err := cluster.Lock()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer unlock()
	keep := cluster.Running() || os.Getenv("WINKUBE_KEEP") != ""
	if err := cluster.Up(ctx); err != nil {
		fmt.Println(err)
		return 1
	}
	typed, err := cluster.Client()
	if err == nil {
		client = typed
		err = check.Apply(ctx, cluster)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	if err := namespacesGone(ctx); err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	if keep && !spent {
		return code
	}
	begin := time.Now()
	if err := cluster.Down(ctx); err != nil { // it fails if something is left behind
		return 1
	}
	fmt.Printf("the cluster is gone without a trace after %.1f s\n", time.Since(begin).Seconds())
	return code
}
