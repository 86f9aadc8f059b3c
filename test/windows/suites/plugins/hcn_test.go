package plugins

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var outcome = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+) `)

const (
	lonely = "TestCreateUpdateDeleteLoadBalancer"    // if it fails it leaves objects that other tests create too
	notRun = "TestAccelnetNnvManagementMacAddresses" // no source says which hosts have it
)

// hcnBuilds have HNS v2.
var hcnBuilds = []int{17763, 20348, 26100}

// TestHcsshim runs Microsoft's own tests of package hcn on each build. testdata/hcn.txt has a line for each test with its result per build, and a
// reason for each that does not pass everywhere.
func TestHcsshim(t *testing.T) {
	const path = "testdata/hcn.txt"
	ended := map[string][]string{} // by test, in the order of builds
	version := ""
	for i, build := range hcnBuilds {
		var exe string
		w, p := simulated(t.Context(), t, build)
		exe, version = program(t, "hcn.test.exe")
		w.Address = nodeAddress
		for _, which := range []string{"-test.skip=^(" + lonely + "|" + notRun + ")$", "-test.run=^" + lonely + "$"} {
			said, err := p.Finish(p.Command(t.Context(), exe, "-test.v", "-test.timeout=3m", which))
			if said.Stdout == "" {
				t.Fatalf("build %d: %v: %s", build, err, said)
			}
			for _, match := range outcome.FindAllStringSubmatch(strings.ReplaceAll(said.Stdout, "\r", ""), -1) {
				if ended[match[2]] == nil {
					ended[match[2]] = slices.Repeat([]string{"-"}, len(hcnBuilds))
				}
				ended[match[2]][i] = strings.ToLower(match[1])
				if match[1] == "FAIL" {
					_, rest, _ := strings.Cut(said.Stdout, "=== RUN   "+match[2]+"\n")
					rest, _, _ = strings.Cut(rest, "=== RUN ")
					t.Logf("build %d: %s", build, rest)
				}
			}
		}
	}
	ended[notRun] = []string{"not", "run", ""}
	want, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for line := range strings.Lines(string(want)) {
		if text, reason, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  # "); ok {
			reasons[strings.Fields(text)[0]] = reason
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "hcsshim %s, package hcn, by build %v\n", version, hcnBuilds)
	for _, name := range slices.Sorted(maps.Keys(ended)) {
		line := strings.TrimSpace(name + " " + strings.Join(ended[name], " "))
		if reasons[name] != "" {
			line += "  # " + reasons[name]
		} else if slices.ContainsFunc(ended[name], func(one string) bool { return one != "pass" }) {
			t.Errorf("%s: %v has no explanation", name, ended[name])
		}
		fmt.Fprintln(&b, line)
	}
	golden(t, path, b.String())
}
