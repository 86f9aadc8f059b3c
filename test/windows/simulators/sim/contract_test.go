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

// TestContract runs testdata/contract under Wine: Microsoft's hcsshim and wireguard's winipcfg must find what they expect from
// Windows, and every call of theirs must be simulated. The log proves that they called.
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
	// One call of each kind, by the DLL that it goes through.
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
		if err := os.Chmod(parent, 0o755); err != nil { // Wine's user must read it
			t.Fatal(err)
		}
	}
	return exe
}

// maxLeaked is the number of handles that hcsshim leaks in the contract tests: it leaves them open if a call fails halfway (createEndpoint,
// modifyEndpoint), and after each modify.
const maxLeaked = 12

// TestNoV2: Server 2016 has no computenetwork.dll, so that callers detect it as on Windows.
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
