package csidriver_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/winkube/winkube/test/csidriver"
	"github.com/winkube/winkube/test/output"
)

// TestSanity runs csi-sanity, the test suite for drivers that the CSI project's users wrote, against the driver.
func TestSanity(t *testing.T) {
	if os.Getenv("WINKUBE_E2E") == "" || os.Geteuid() != 0 {
		t.Skip("set WINKUBE_E2E=1 as root: it builds csi-sanity and mounts")
	}
	root, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	sanity := filepath.Join(root, "csi-sanity")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../../hack/tools/csi-sanity", "-o", sanity, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	if said, err := output.Of(build); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	socket := filepath.Join(root, "csi.sock")
	driver, err := csidriver.New(csidriver.Config{Name: "dir.winkube.test", NodeID: "n1", Endpoint: socket, Data: filepath.Join(root, "data"), Topology: map[string]string{"dir.winkube.test/node": "n1"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- driver.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for _, access := range []string{"mount", "block"} {
		limit, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		said, err := output.Of(exec.CommandContext(limit, sanity, "--csi.endpoint="+socket, "--csi.mountdir="+filepath.Join(root, "mount"),
			"--csi.stagingdir="+filepath.Join(root, "stage"), "--csi.testvolumeaccesstype="+access, "--ginkgo.no-color"))
		if err != nil {
			t.Errorf("%s: %v: %s", access, err, said)
		}
		ran := regexp.MustCompile(`Ran (\d+) of \d+ Specs.*\n.*`).FindStringSubmatch(said.Stdout)
		if ran == nil {
			t.Fatalf("%s: no result in %s", access, said)
		}
		t.Log(access, ran[0])
		if n, err := strconv.Atoi(ran[1]); err != nil || n < 60 {
			t.Errorf("%s: only %s specs ran: does the driver no longer report what it can?", access, ran[1])
		}
	}
}
