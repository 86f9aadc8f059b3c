package programs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/rig"
)

// TestCSIProxy runs the tests TestProxied* of test/csidriver as each Server that has CSI drivers: csi-proxy's servers, unmodified over a simulated
// host, and our driver are programs, and they and the kubelet's parts reach each other by named pipes and loopback TCP. This proves which calls are made
// and how answers are handled. Links are simulated too.
func TestCSIProxy(t *testing.T) {
	if os.Getenv("WINKUBE_WINE") == "" || testing.Short() {
		t.Skip("builds another project's programs; make test-windows runs it")
	}
	builds := rig.Wanted(17763, 20348, 26100)
	if len(builds) == 0 {
		t.Skip("none of these Servers is wanted")
	}
	overlay, err := rig.Overlay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	proxy, driver, tests := filepath.Join(dir, "csi-proxy.exe"), filepath.Join(dir, "csidriver.exe"), filepath.Join(dir, "csidriver.test.exe")
	for _, err := range []error{
		rig.GoTool(t.Context(), "csi-proxy", "build", "-overlay="+overlay, "-o", proxy, "./simulator"),
		rig.Go(t.Context(), "build", "-overlay="+overlay, "-o", driver, "./test/csidriver/program"),
		rig.Go(t.Context(), "test", "-c", "-vet=off", "-overlay="+overlay, "-o", tests, "./test/csidriver"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, build := range builds {
		t.Run(strconv.Itoa(build), func(t *testing.T) {
			p := rig.Test(t, build)
			cmd := p.Command(t.Context(), tests, "-test.v", "-test.timeout=5m", "-test.run=^TestProxied")
			cmd.Env = append(cmd.Env, "WINKUBE_CSI_PROXY="+rig.WindowsPath(proxy), "WINKUBE_CSI_DRIVER="+rig.WindowsPath(driver), "WINKUBE_BUILD="+strconv.Itoa(build))
			said, err := p.Finish(cmd)
			if err != nil || strings.Count(said.Stdout, "--- PASS: TestProxied") != 2 {
				t.Errorf("%v\n%s", err, said)
			}
		})
	}
}
