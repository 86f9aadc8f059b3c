package hns

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

var update = flag.Bool("update", false, "rewrite the golden parts of testdata")

// TestScripts plays testdata/*.txtar. A script is a list of calls, "NAME = Function argument | argument". NAME stores the call's value, and $NAME
// in an argument is replaced by it. "build N" starts a new service, "build N ADDRESS" one on a host with that address; state, crash, start, restart
// and reboot do what they say. The part "out" has the result of each line.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(archive.Comment))
			if *update {
				archive.Files = []txtar.File{{Name: "out", Data: []byte(got)}}
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(archive.Files) != 1 || got != string(archive.Files[0].Data) {
				t.Errorf("got:\n%s", got)
			}
		})
	}
}

func play(t *testing.T, script string) string {
	var out strings.Builder
	var h *HNS
	values := map[string]string{}
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fmt.Fprintln(&out, "> "+line)
		name, call, named := strings.Cut(line, " = ")
		if !named || strings.ContainsAny(name, " {") {
			name, call = "", line
		}
		function, rest, _ := strings.Cut(call, " ")
		switch function {
		case "build":
			number, address, _ := strings.Cut(rest, " ")
			build, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			host, _ := netip.ParseAddr(address) // most scripts name none
			h = New(Options{Build: build, Log: &calls.Log{}, Address: func() netip.Addr { return host }})
			continue
		case "state":
			out.WriteString(h.String())
			continue
		case "crash":
			h.Crash()
			continue
		case "start":
			h.Start()
			continue
		case "restart":
			h.Restart()
			continue
		case "reboot":
			h.Reboot()
			continue
		}
		var args []string
		for arg := range strings.SplitSeq(rest, " | ") {
			for key, value := range values {
				arg = strings.ReplaceAll(arg, "$"+key+"$", value)
			}
			if arg == "-" {
				arg = ""
			}
			args = append(args, strings.ReplaceAll(arg, "zero", zeroGUID))
		}
		result, value, record := h.Call(function, args)
		if name != "" {
			values[name] = value
		}
		if result != 0 {
			last := h.log.Calls()
			fmt.Fprintf(&out, "%#x %s: %s\n", uint32(result), record, last[len(last)-1].Detail)
		} else if value != "" {
			fmt.Fprintln(&out, value)
		}
	}
	return out.String()
}

// TestUnknownIsMarked: the log marks calls that are not simulated, so that tests on the simulator fail.
func TestUnknownIsMarked(t *testing.T) {
	for _, test := range []struct {
		build    int
		function string
		args     []string
	}{
		{20348, "HcnFrobNetwork", nil},
		{20348, "HcnOpenNetwork", []string{"a", "b"}},
		{20348, "HcnCreateNetwork", []string{zeroGUID, `{"Name":"a","Type":"NAT","Colour":"red","SchemaVersion":{"Major":2}}`}},
		{20348, "HNSCall", []string{"GET", "/switches/", ""}},
		{14393, "HcnEnumerateNetworks", []string{"{}"}},
	} {
		log := &calls.Log{}
		h := New(Options{Build: test.build, Log: log})
		if result, _, _ := h.Call(test.function, test.args); result == 0 || len(log.Unknown()) != 1 {
			t.Errorf("%s %q on %d: result %#x, log:\n%s", test.function, test.args, test.build, uint32(result), log)
		}
	}
}

// TestHandles: every handle must be closed.
func TestHandles(t *testing.T) {
	h := New(Options{Build: 20348})
	result, network, _ := h.Call("HcnCreateNetwork", []string{zeroGUID, `{"Name":"a","Type":"NAT","SchemaVersion":{"Major":2}}`})
	if result != 0 || h.OpenHandles() != 1 {
		t.Fatalf("result %#x, %d handles", uint32(result), h.OpenHandles())
	}
	for want := range []int{0, 1} {
		result, _, _ := h.Call("HcnCloseNetwork", []string{network})
		if (result == InvalidHandle) != (want == 1) || h.OpenHandles() != 0 {
			t.Errorf("close %d: %#x, %d handles", want+1, uint32(result), h.OpenHandles())
		}
	}
}
