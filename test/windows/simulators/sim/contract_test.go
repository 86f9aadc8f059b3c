package sim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// TestContract runs testdata/contract under Wine: Microsoft's hcsshim and wireguard's winipcfg must find the simulators as they expect
// Windows to be, and nothing that they call may be unknown here. That they did call is seen in the log.
func TestContract(t *testing.T) {
	w, p := start(t, 20348)
	w.Compute = func(id string) (string, bool) { return `{"Id":"contract","SystemType":"Container"}`, id == "contract" }
	w.PDH.Set(`\Memory\Available Bytes`, 4<<30)
	out, err := p.Run(t.Context(), contract(t), "-test.v", "-test.skip=^TestHeard$")
	if err != nil {
		t.Errorf("%v; calls:\n%s", err, w.Log)
	}
	t.Log(out)
	for _, unknown := range w.Log.Unknown() {
		if !strings.Contains(unknown.Detail, `"Colour"`) {
			t.Errorf("unknown: %s", unknown)
		}
	}
	// One of each kind of call, by the DLL that they go through.
	for _, function := range []string{"HNSCall", "HcnCreateNetwork", "HcnModifyEndpoint", "HcsModifyComputeSystem", "HcnCreateSdnRoute", "HcnModifyNamespace", "CreateIpForwardEntry2",
		"CreateUnicastIpAddressEntry", "SetIpInterfaceEntry", "NotifyRouteChange2", "PdhCollectQueryData"} {
		if len(w.Log.Calls(function)) == 0 {
			t.Errorf("%s was not called", function)
		}
	}
	if w.HNS.OpenHandles() > maxLeaked {
		t.Errorf("%d handles are open", w.HNS.OpenHandles())
	}
	if got := w.HNS.String(); got != "" {
		t.Errorf("left in HNS:\n%s", got)
	}
}

// contract builds the program of the contract tests and returns its path.
func contract(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata/contract")
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "contract.exe")
	build := exec.CommandContext(t.Context(), "go", "test", "-C", dir, "-c", "-o", exe, ".")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if said, err := output.Of(build); err != nil {
		t.Fatalf("cannot build the contract tests: %v: %s", err, said)
	}
	for parent := exe; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil { // Wine's user reads it
			t.Fatal(err)
		}
	}
	return exe
}

// maxLeaked: hcsshim leaves handles open where a call fails on the way (createEndpoint, modifyEndpoint), and after each modify; the contract
// tests provoke that this often.
const maxLeaked = 12

// TestNoV2 sees that Server 2016 has no computenetwork.dll, so that callers learn it as they do on Windows.
func TestNoV2(t *testing.T) {
	w, p := start(t, 14393)
	if w.HNS.V2() {
		t.Fatal("HNS of Server 2016 has version 2")
	}
	if _, err := os.Stat(filepath.Join(p.SystemDir(), "computenetwork.dll")); err == nil {
		t.Error("computenetwork.dll is there")
	}
	if result, _, _ := w.HNS.Call("HcnEnumerateNetworks", []string{"{}"}); result != hns.NotImplemented {
		t.Errorf("result %#x", uint32(result))
	}
}
