package hcs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hcs"
)

// TestLayers: layers are mounted and unmounted in moby's order, and are volumes only while mounted. Calls that are not simulated are refused.
func TestLayers(t *testing.T) {
	log := &calls.Log{}
	h := hcs.New(log)
	const path = `C:\docker\windowsfilter\a`
	layer := func(there string) [][]byte { return [][]byte{[]byte(path), []byte(there), nil, nil} }
	for i, step := range []struct {
		function string
		args     [][]byte
		result   uint32
	}{
		{"ActivateLayer", layer(""), 0x80070003},
		{"CreateSandboxLayer", layer("there"), 0x800700b7},
		{"CreateSandboxLayer", layer(""), 0},
		{"PrepareLayer", layer("there"), 0xc0370105},
		{"ActivateLayer", layer("there"), 0},
		{"PrepareLayer", layer("there"), 0},
		{"DeactivateLayer", layer("there"), 0xc0370105},
		{"DestroyLayer", layer("there"), 0xc0370105},
		{"UnprepareLayer", layer("there"), 0},
		{"DeactivateLayer", layer("there"), 0},
		{"DestroyLayer", layer("there"), 0},
		{"ImportLayer", layer("there"), 0x80004001},
		{"HcsEnumerateComputeSystems", [][]byte{[]byte(`{"Colour":"red"}`)}, 0xc037010d},
		{"HcsEnumerateComputeSystems", [][]byte{[]byte(`{}`)}, 0},
	} {
		if result, _ := h.Call(step.function, step.args); result != step.result {
			t.Errorf("step %d, %s: %#x, want %#x", i, step.function, result, step.result)
		}
	}
	if got := log.Unknown(); len(got) != 2 {
		t.Errorf("unknown: %v", got)
	}
	_, unmounted := h.Call("GetLayerMountPath", layer("there"))
	h.Call("ActivateLayer", layer("there"))
	_, mounted := h.Call("GetLayerMountPath", layer("there"))
	h.Reboot()
	_, rebooted := h.Call("GetLayerMountPath", layer("there"))
	if string(unmounted) != path || string(mounted) == path || string(rebooted) != path {
		t.Errorf("mounted at %q, %q, %q", unmounted, mounted, rebooted)
	}
}

// TestSystems: a container needs a mounted layer and is started once. It has processes while it runs and HNS endpoints from its start to its end.
// It may share another's network only while that container exists. Fields that HCS's schema does not have are refused.
func TestSystems(t *testing.T) {
	log := &calls.Log{}
	h := hcs.New(log)
	var attached []string
	h.Attach = func(container, endpoint string, attach bool) uint32 {
		attached = append(attached, fmt.Sprint(container, endpoint, attach))
		return 0
	}
	const path = `C:\docker\windowsfilter\a`
	layer := [][]byte{[]byte(path), []byte("there"), nil, nil}
	h.Call("ActivateLayer", layer)
	h.Call("PrepareLayer", layer)
	_, volume := h.Call("GetLayerMountPath", layer)
	of := func(fields string) []byte {
		return fmt.Appendf(nil, `{"SystemType":"Container","Name":"a","LayerFolderPath":%q,"VolumePath":%q%s}`, path, strings.TrimSuffix(string(volume), `\`), fields)
	}
	a, b, process := []byte("a"), []byte("b"), []byte(`{"CommandLine":"cmd"}`)
	for i, step := range []struct {
		function string
		args     [][]byte
		result   uint32
		value    string
	}{
		{"HcsCreateComputeSystem", [][]byte{a, []byte("{")}, 0xc037010d, ""},
		{"HcsCreateComputeSystem", [][]byte{a, of(`,"Colour":"red"`)}, 0xc037010d, ""},
		{"HcsCreateComputeSystem", [][]byte{a, []byte(`{"SystemType":"Container","LayerFolderPath":"C:\\b"}`)}, 0x80070003, ""},
		{"HcsCreateComputeSystem", [][]byte{b, of(`,"NetworkSharedContainerName":"a"`)}, 0xc037010e, ""},
		{"HcsStartComputeSystem", [][]byte{a}, 0xc037010e, ""},
		{"HcsCreateComputeSystem", [][]byte{a, of(`,"EndpointList":["e"]`)}, 0, ""},
		{"HcsCreateComputeSystem", [][]byte{a, of("")}, 0xc037010f, ""},
		{"HcsCreateComputeSystem", [][]byte{b, of(`,"NetworkSharedContainerName":"a"`)}, 0, ""},
		{"HcsCreateProcess", [][]byte{a, process}, 0xc0370105, ""},
		{"HcsStartComputeSystem", [][]byte{a}, 0, ""},
		{"HcsStartComputeSystem", [][]byte{a}, 0xc0370105, ""},
		{"HcsCreateProcess", [][]byte{a, []byte(`{}`)}, 0xc037010d, ""},
		{"HcsCreateProcess", [][]byte{a, process}, 0, "1004"},
		{"HcsOpenComputeSystem", [][]byte{a}, 0, ""},
		{"HcsGetComputeSystemProperties", [][]byte{a, []byte(`{"PropertyTypes":["Colour"]}`)}, 0x80004001, ""},
		{"HcsEnumerateComputeSystems", [][]byte{[]byte(`{"Ids":["a"]}`)}, 0, `[{"Id":"a","Name":"a","Owner":"","RuntimeOsType":"Windows","State":"Running","SystemType":"Container"}]`},
		{"HcsTerminateComputeSystem", [][]byte{a}, 0, ""},
		{"HcsShutdownComputeSystem", [][]byte{a}, 0xc037010e, ""},
		{"HcsTerminateComputeSystem", [][]byte{b}, 0, ""},
		{"HcsEnumerateComputeSystems", [][]byte{[]byte(`{}`)}, 0, `[]`},
	} {
		if result, value := h.Call(step.function, step.args); result != step.result || string(value) != step.value {
			t.Errorf("step %d, %s: %#x %s, want %#x %s", i, step.function, result, value, step.result, step.value)
		}
	}
	if got := fmt.Sprint(attached); got != "[aetrue aefalse]" {
		t.Errorf("attached: %s", got)
	}
	if got := h.Documents(); len(got) != 6 || got[5] != (hcs.Document{ID: "a", JSON: `{"CommandLine":"cmd"}`}) {
		t.Errorf("documents: %v", got)
	}
}

// TestProcesses: a process prints and ends as Program says, or when Exit has it end; the end of its system ends it without an exit code.
func TestProcesses(t *testing.T) {
	h := hcs.New(&calls.Log{})
	h.Program = func(commandLine string) hcs.Program {
		return hcs.Program{Output: commandLine + "\n", Ends: commandLine == "once", Code: 3}
	}
	var attached []string
	h.Attach = func(container, endpoint string, attach bool) uint32 {
		attached = append(attached, fmt.Sprint(container, endpoint, attach))
		return 0
	}
	h.Call("HcsCreateComputeSystem", [][]byte{[]byte("a"), []byte(`{"SystemType":"Container","HvPartition":true,"HvRuntime":{"ImagePath":"C:\\"}}`)})
	h.Call("HcsStartComputeSystem", [][]byte{[]byte("a")})
	for _, line := range []string{"always", "once"} {
		if result, _ := h.Call("HcsCreateProcess", [][]byte{[]byte("a"), fmt.Appendf(nil, `{"CommandLine":%q}`, line)}); result != 0 {
			t.Fatalf("%s: %#x", line, result)
		}
	}
	if code, ok := h.Wait(t.Context(), 1008); code != 3 || !ok || h.Output(1008) != "once\n" || h.Output(1012) != "" {
		t.Errorf("once: %d %t, %q", code, ok, h.Output(1008))
	}
	if !h.Exit("a", 7) || h.Exit("a", 8) || h.Exit("b", 7) {
		t.Error("Exit does not end the container's process once")
	}
	if code, ok := h.Wait(t.Context(), 1004); code != 7 || !ok {
		t.Errorf("always: %d %t", code, ok)
	}
	h.Attached("a", "e", true)
	h.Attached("a", "f", true)
	h.Attached("a", "f", false)
	h.Attached("b", "g", true)
	h.Call("HcsCreateProcess", [][]byte{[]byte("a"), []byte(`{"CommandLine":"always"}`)})
	done := make(chan bool)
	go func() {
		_, ok := h.Wait(t.Context(), 1012)
		done <- ok
	}()
	h.Call("HcsTerminateComputeSystem", [][]byte{[]byte("a")})
	if <-done {
		t.Error("a process has an exit code although its system was ended")
	}
	if got := fmt.Sprint(attached, h.Systems()); got != "[aefalse] []" {
		t.Errorf("attached, systems: %s", got)
	}
}
