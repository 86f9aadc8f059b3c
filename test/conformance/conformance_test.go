package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/test/lab"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		env  map[string]string
		want string // result of describe, or the error
	}{
		{nil, "conformance tests of sig-node, sig-storage, sig-network, sig-apps, sig-cli, sig-auth, sig-scheduling, sig-instrumentation, not Serial; 8 processes, 2 nodes"},
		{map[string]string{"SIGS": "sig-node", "SERIAL": "1", "PROCS": "3", "NODES": "1"}, "conformance tests of sig-node, Serial; 3 processes, 1 nodes"},
		{map[string]string{"SIGS": "sig-node", "ALL": "1", "FOCUS": "Resize", "SKIP": "Slow"}, "all tests of sig-node, not Serial, FOCUS=Resize, SKIP=Slow; 8 processes, 2 nodes"},
		{map[string]string{"SIGS": "sig-node", "SUBSET": "1"}, "conformance tests of sig-node, the subset for everyday, not Serial; 8 processes, 2 nodes"},
		{map[string]string{"SIGS": "sig-node", "ENGINE_API": "1.24"}, "conformance tests of sig-node, not Serial, ENGINE_API=1.24; 8 processes, 2 nodes"},
		{map[string]string{"ENGINE_API": "1.23"}, `ENGINE_API: got "1.23", want one of 1.24, 1.41, min1.44, or nothing`},
		{map[string]string{"SIGS": "sig-node", "ENGINE": "29"}, "conformance tests of sig-node, not Serial, ENGINE=29; 8 processes, 2 nodes"},
		{map[string]string{"SIGS": "sig-node", "RUNTIME": "crun"}, "conformance tests of sig-node, not Serial, RUNTIME=crun; 8 processes, 2 nodes"},
		{map[string]string{"RUNTIME": "runsc"}, `RUNTIME: got "runsc", want crun or runc-privileged, or nothing for runc`},
		{map[string]string{"RUNTIME": "crun", "ENGINE_API": "1.41"}, "RUNTIME cannot be combined with ENGINE_API, whose results are recorded for runc: leave one out"},
		{map[string]string{"SIGS": "sig-node", "CONTROL_PLANE": "1.33"}, "conformance tests of sig-node, not Serial, CONTROL_PLANE=1.33; 8 processes, 2 nodes"},
		{map[string]string{"CONTROL_PLANE": "1.20"}, `CONTROL_PLANE: got "1.20", want one of 1.33, 1.37, or nothing for 1.36.3`},
		{map[string]string{"CONTROL_PLANE": "1.33", "ENGINE_API": "1.41"}, "CONTROL_PLANE cannot be combined with ENGINE_API, whose results are recorded for one control plane: leave one out"},
		{map[string]string{"ENGINE": "30"}, `ENGINE: got "30", want one of 25, 28, 29, 29-overlay2, 29-nftables, or nothing for Debian's engine`},
		{map[string]string{"ENGINE": "29", "ENGINE_API": "1.41"}, "ENGINE cannot be combined with ENGINE_API, which imitates versions on Debian's engine: leave one out"},
		{map[string]string{"PROCS": "many"}, `PROCS: got "many", want a number from 1 to 64`},
		{map[string]string{"NODES": "4"}, `NODES: got "4", want a number from 1 to 3`},
		{map[string]string{"SERIAL": "yes"}, `SERIAL: got "yes", want 1 or nothing`},
		{map[string]string{"SIGS": "sig-network", "NETWORK_MODE": "cni"}, "conformance tests of sig-network, not Serial, NETWORK_MODE=cni; 8 processes, 2 nodes"},
		{map[string]string{"SIGS": "sig-network", "NETWORK_MODE": "host-gateway"}, "conformance tests of sig-network, not Serial; 8 processes, 2 nodes"},
		{map[string]string{"STORAGE": "csi", "SERIAL": "1"}, "tests of provisioned volumes of sig-storage, sig-apps, Serial, STORAGE=csi; 8 processes, 2 nodes"},
		{map[string]string{"STORAGE": "nfs"}, `STORAGE: got "nfs", want csi, or nothing for a cluster without provisioned volumes`},
		{map[string]string{"STORAGE": "csi", "WIDE": "1"}, "STORAGE cannot be combined with ALL, WIDE or SUBSET, because it selects its own tests: leave them out"},
		{map[string]string{"FOCUS": "("}, "FOCUS: \"(\" is not a regular expression: error parsing regexp: missing closing ): `(`"},
		{map[string]string{"WIDE": "1", "NODES": "3", "PROXY_MODE": "connect"}, "tests beyond Conformance of sig-node, sig-network, sig-apps, sig-storage, sig-instrumentation, not Serial, PROXY_MODE=connect; 8 processes, 3 nodes"},
		{map[string]string{"WIDE": "1"}, "tests beyond Conformance of sig-node, sig-network, sig-apps, sig-storage, sig-instrumentation, not Serial; 8 processes, 2 nodes"},
		{map[string]string{"SIGS": "sig-network", "WIDE": "1", "DUAL_STACK": "1"}, "tests beyond Conformance of sig-network, not Serial, DUAL_STACK=1; 8 processes, 2 nodes"},
		{map[string]string{"DUAL_STACK": "yes"}, `DUAL_STACK: got "yes", want 1 or nothing`},
		{map[string]string{"WIDE": "1", "SERIAL": "1"}, "tests beyond Conformance of sig-node, sig-network, sig-apps, sig-storage, sig-instrumentation, Serial; 8 processes, 2 nodes"},
		{map[string]string{"WIDE": "1", "SUBSET": "1"}, "WIDE=1 cannot be combined with ALL or SUBSET: leave them out"},
		{map[string]string{"VM": "1"}, "tests for a virtual machine of sig-node, sig-storage, not Serial, VM=1; 2 processes, 1 nodes"},
		{map[string]string{"VM": "1", "SUBSET": "1"}, "VM=1 cannot be combined with ALL, SERIAL, STORAGE, SUBSET or WIDE, because it selects its own tests: leave them out"},
		{map[string]string{"SIGS": "sig-network", "ENGINE": "29", "POD_INTERFACES": "engine"}, "conformance tests of sig-network, not Serial, POD_INTERFACES=engine, ENGINE=29; 8 processes, 2 nodes"},
		{map[string]string{"ALL": "1"}, "ALL=1 needs a FOCUS: the whole suite has more than 7000 tests, most for other systems"},
	} {
		o, err := parse(func(name string) string { return test.env[name] })
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = o.describe()
		}
		if got != test.want {
			t.Errorf("%v:\ngot  %s\nwant %s", test.env, got, test.want)
		}
	}
}

func TestWideLeavesOut(t *testing.T) {
	for name, out := range map[string]bool{
		"[sig-node] Pods should be submitted and removed [NodeConformance] [Conformance]":                                        true,
		"[sig-network] Services should implement NodePort and HealthCheckNodePort correctly":                                     false,
		"[sig-storage] In-tree Volumes [Driver: emptydir] [Testpattern: Inline-volume (default fs)] subPath should fail":         false,
		"[sig-storage] In-tree Volumes [Driver: iscsi] [Feature:Volumes] [Testpattern: Pre-provisioned PV (default fs)] volumes": true,
		"[sig-storage] CSI Volumes [Driver: csi-hostpath] [Testpattern: Dynamic PV (default fs)] volumes should store data":      true,
		"[sig-node] DRA [Feature:DynamicResourceAllocation] kubelet must retry":                                                  true,
		"[sig-node] Pod InPlace Resize Container [FeatureGate:InPlacePodVerticalScaling] guaranteed":                             false,
		"[sig-apps] Daemon set [Serial] should run and stop simple daemon [Conformance]":                                         true,
		"[sig-apps] Daemon set [Serial] should surge pods onto nodes when spec was updated":                                      false,
		"[sig-node] [Feature:Example] Liveness liveness pods should be automatically restarted":                                  false,
	} {
		o := options{wide: true, serial: strings.Contains(name, "[Serial]"), sigs: []string{sigOf(name)}}
		if got := o.matches(name); got == out {
			t.Errorf("%s: selected %t, want %t", name, got, !out)
		}
	}
	const both = "[sig-network] [Feature:IPv6DualStack] should have ipv4 and ipv6 internal node ip"
	for _, dual := range []bool{false, true} {
		if got := (options{wide: true, dual: dual, sigs: []string{"sig-network"}}).matches(both); got != dual {
			t.Errorf("%s: selected %t with DUAL_STACK %t", both, got, dual)
		}
	}
}

func TestByMessage(t *testing.T) {
	var list []outcome
	for i := range 6 {
		list = append(list, outcome{Name: fmt.Sprintf("test %d", i), Message: "no such driver"})
	}
	list = append(list, outcome{Name: "other", Message: "no cloud"})
	if got, want := byMessage(list), []string{"6 tests: no such driver", "other: no cloud"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPick(t *testing.T) {
	names := listed(`The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/kubernetes@v1.36.3/test/e2e/node/a.go:1: [sig-node] A should work [Conformance]
    k8s.io/kubernetes@v1.36.3/test/e2e/node/a.go:2: [sig-node] A should also work [NodeConformance]
    k8s.io/kubernetes@v1.36.3/test/e2e/node/a.go:3: [sig-node] B should work alone [Serial] [Conformance]
    k8s.io/kubernetes@v1.36.3/test/e2e/node/a.go:4: [sig-node] C: [sig-x] wants what is not here [Conformance]
    k8s.io/kubernetes@v1.36.3/test/e2e/apps/b.go:5: [sig-apps] D should work [Conformance]
    k8s.io/kubernetes@v1.36.3/test/e2e/storage/testsuites/c.go:6: External Storage [Driver: x] [Testpattern: Dynamic PV (default fs)] E should work
    k8s.io/kubernetes@v1.36.3/test/e2e/storage/d.go:7: [sig-storage] PVC Protection Verify that it works

`)
	if len(names) != 7 {
		t.Fatalf("read %q", names)
	}
	limits := []limit{{name: regexp.MustCompile("what is not here"), reason: "it is not here", proof: "look"}}
	for _, test := range []struct {
		o            options
		want, cannot string
	}{
		{options{sigs: []string{"sig-node"}}, "[sig-node] A should work [Conformance]", "[sig-node] C: [sig-x] wants what is not here [Conformance]"},
		{options{sigs: []string{"sig-node"}, serial: true}, "[sig-node] B should work alone [Serial] [Conformance]", ""},
		{options{sigs: []string{"sig-node"}, all: true, focus: regexp.MustCompile("also")}, "[sig-node] A should also work [NodeConformance]", ""},
		{options{sigs: []string{"sig-apps", "sig-node"}, skip: regexp.MustCompile(" [AC]")}, "[sig-apps] D should work [Conformance]", ""},
		{options{sigs: []string{"sig-storage"}, storage: "csi"}, "External Storage [Driver: x] [Testpattern: Dynamic PV (default fs)] E should work\n" +
			"[sig-storage] PVC Protection Verify that it works", ""},
	} {
		p := pick(names, test.o, limits)
		cannot := ""
		for _, s := range p.Cannot {
			cannot += s.Name
		}
		if got := strings.Join(p.Tests, "\n"); got != test.want || cannot != test.cannot {
			t.Errorf("%s:\ngot  %s\nnot  %s\nwant %s\nnot  %s", test.o.describe(), got, cannot, test.want, test.cannot)
		}
	}
}

func TestEngineTitle(t *testing.T) {
	for name, want := range map[string]string{
		"":                                     "The engine as it is",
		"1.24":                                 "An engine that speaks API 1.24 at most",
		"NETWORK_MODE=cni":                     "The engine as it is, --network-mode=cni",
		"PROXY_MODE=connect":                   "The engine as it is, --proxy-mode=connect",
		"PROXY_MODE=auto PROXY_LACKS=rights":   "The engine as it is, --proxy-mode=auto without the right to use BPF",
		"RUNTIME=crun":                         "The engine as it is, runtime crun",
		"NETWORK_MODE=overlay PROXY_MODE=auto": "The engine as it is, --network-mode=overlay, --proxy-mode=auto",
		"CONTROL_PLANE=1.33":                   "The engine as it is, control plane 1.33",
		"STORAGE=csi":                          "The engine as it is, volumes provisioned by a CSI driver",
		"ENGINE=29 POD_INTERFACES=engine":      lab.DescribeRelease("29") + ", --pod-interfaces=engine",
		"VM=1":                                 "A virtual machine",
		"ENGINE=29 NETWORK_MODE=overlay":       lab.DescribeRelease("29") + ", --network-mode=overlay",
	} {
		if got := engineTitle(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestBoundingSet(t *testing.T) {
	got, err := boundingSet("Name:\tx\nCapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\n")
	if err != nil || got>>24&1 != 0 || got>>21&1 != 1 {
		t.Errorf("got %x, %v; want no CAP_SYS_RESOURCE, but CAP_SYS_ADMIN", got, err)
	}
	if _, err := boundingSet("Name:\tx\n"); err == nil {
		t.Error("a status without capabilities was read")
	}
}

func TestConfigure(t *testing.T) {
	got := configure([]byte("# CONFIG_STATIC is not set\nCONFIG_TC=y\n\nCONFIG_TCPSVD=y\n"), []string{"CONFIG_STATIC=y", "# CONFIG_TC is not set"})
	if want := "CONFIG_STATIC=y\n# CONFIG_TC is not set\n\nCONFIG_TCPSVD=y\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAgnhost: shell and wget are busybox's, and no entry replaces the root's /bin, which is a link in Debian.
func TestAgnhost(t *testing.T) {
	links := map[string]string{}
	for _, e := range agnhostEntries([]byte("program")) {
		if strings.HasPrefix(e.name, "bin/") || strings.HasPrefix(e.name, "sbin/") || strings.HasPrefix(e.name, "lib") {
			t.Errorf("%s replaces a link of the root by a directory", e.name)
		}
		links[e.name] = e.link
		if e.name == "usr/bin/busybox" && (string(e.data) != "program" || e.mode != 0o755) {
			t.Errorf("the program is %q with mode %o", e.data, e.mode)
		}
	}
	if links["usr/bin/sh"] != "busybox" || links["usr/bin/wget"] != "busybox" {
		t.Errorf("links: %v", links)
	}
}

// TestSuits checks a busybox without $RANDOM, simulated by a script.
func TestSuits(t *testing.T) {
	for script, want := range map[string]string{
		"echo 4711": "",
		"echo":      "busybox's shell has no $RANDOM (<nil>): set ASH_RANDOM_SUPPORT",
	} {
		file := filepath.Join(t.TempDir(), "busybox")
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := suits(t.Context(), file, []string{"sh", "wget"}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	if err := suits(t.Context(), "/nowhere", []string{"sh"}); err == nil || !strings.Contains(err.Error(), "busybox has no wget") {
		t.Errorf("one without wget: %v", err)
	}
}

// ginkgoOutput is ginkgo's output of parallel tests: two passed, two failed, one skipped itself; and an entry that is
// not a test.
const ginkgoOutput = `Running Suite: Kubernetes e2e suite
SSSS
------------------------------
[SynchronizedBeforeSuite] PASSED [10.1 seconds]
[SynchronizedBeforeSuite]
------------------------------
• [5.213 seconds]
[sig-node] A should work [Conformance] [sig-node, Conformance]
  Timeline >>
  << Timeline
------------------------------
S [SKIPPED] [0.001 seconds]
[sig-node] B [It] should work elsewhere [Conformance] [sig-node, Conformance]
------------------------------
S
------------------------------
• [FAILED] [7.000 seconds]
[sig-node] C [It] should work [Conformance] [sig-node, Conformance]
  [FAILED] it did not
------------------------------
• [FAILED] [7.000 seconds]
External Storage [Driver: x] E [It] should work
  [FAILED] it did not
------------------------------
• [6.000 seconds]
[sig-node] D should work [Conformance] [sig-node, Conformance]
Ran 3 of 7581 Specs
`

func TestProgress(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	p := newProgress(file, 5)
	for piece := range slices.Chunk([]byte(ginkgoOutput), 7) {
		if _, err := p.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	p.close()
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if want := "[0s] failed [sig-node] C should work [Conformance]\n[0s] failed External Storage [Driver: x] E should work\n5/5, 2 failed, 0s\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if p.last != "[sig-node] D should work [Conformance]" {
		t.Errorf("the last test is %q", p.last)
	}
}

const planJSON = `{"Selection": "some", "Tests": ["[sig-node] A works", "[sig-node] B works", "[sig-apps] C works", "[sig-apps] D works"],
"Cannot": [{"Name": "[sig-apps] E works", "Reason": "no E", "Proof": "look"}]}`

const reportJSON = `[{"StartTime": "2026-01-02T03:04:05Z", "RunTime": 60000000000, "SpecReports": [
{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] A"], "LeafNodeText": "works", "State": "passed", "RunTime": 2000000000},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] B"], "LeafNodeText": "works", "State": "timedout", "RunTime": 3000000000,
 "CapturedGinkgoWriterOutput": "all that it said", "Failure": {"Message": "it did: {\n  \"kind\": \"Pod\"\n}\n\nnot work", "Location": {"FileName": "b.go", "LineNumber": 7}}},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] C", ""], "LeafNodeText": "works", "State": "skipped", "Failure": {"Message": "wants three nodes"}},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] D"], "LeafNodeText": "works", "State": "skipped", "Failure": {}},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] F"], "LeafNodeText": "was not planned", "State": "skipped"}
]}]`

func TestReport(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{planFile: planJSON, reportFile: reportJSON} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := loadReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !r.failed() {
		t.Error("a run with a failure counts as good")
	}
	var out bytes.Buffer
	r.print(&out)
	want := `
FAIL [sig-node] B works (3.0 s)
    it did: {
    not work
    DIR/failures/sig-node-B-works.log

skipped by the suite itself:
  [sig-apps] C works
    wants three nodes

not run on this machine:
  [sig-apps] E works
    no E

not reached, or interrupted:
  [sig-apps] D works

            passed  failed  skipped  cannot run here  not reached  busy seconds
  sig-apps       0       0        1                1            1             0
  sig-node       1       1        0                0            0             5
       all       1       1        1                1            1             5

some
took 1m0s
`
	if got := strings.ReplaceAll(out.String(), dir, "DIR"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	log, err := os.ReadFile(filepath.Join(dir, failureDir, "sig-node-B-works.log"))
	if err != nil || !strings.Contains(string(log), "all that it said") {
		t.Errorf("the failure's log holds %q, %v", log, err)
	}
}

// Tests that a run did not reach keep their previous verdict; the page names the runs that its results come from.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	day := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := func(engine, selection string, hour int, outcomes ...outcome) {
		rec, err := loadRecord(dir)
		if err != nil {
			t.Fatal(err)
		}
		r := &report{plan: plan{Selection: selection, Engine: engine, Commit: "abc"}, when: day.Add(time.Duration(hour) * time.Hour), took: time.Minute, outcomes: outcomes}
		rec.add(r)
		rec.add(r) // recording the same run again changes nothing
		if err := rec.save(dir); err != nil {
			t.Fatal(err)
		}
	}
	const a, b, c = "[sig-node] A works [Conformance]", "[sig-node] B works [Conformance]", "[sig-apps] C works"
	run("", "superseded", 0, outcome{Name: b, State: passed})
	run("", "first", 1, outcome{Name: a, State: passed, Took: 2 * time.Second}, outcome{Name: b, State: failed, Message: "it did not work"}, outcome{Name: c, State: cannot, Message: "no C"})
	run("", "second", 2, outcome{Name: a, State: unreached}, outcome{Name: b, State: passed})
	run("1.24", "third", 3, outcome{Name: a, State: failed, Message: "no such | field"})
	rec, err := loadRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "page.md")
	if err := writeDocs(page, rec, io.Discard); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "## Results\n")
	text, end, _ := strings.Cut(text, "\n## What `WIDE=1` leaves out\n")
	want := `
### The engine as it is

Conformance tests:

|  | passed | failed | skipped | cannot run here | not reached | busy seconds |
|---|---|---|---|---|---|---|
| sig-node | 2 | 0 | 0 | 0 | 0 | 2 |
| all | 2 | 0 | 0 | 0 | 0 | 2 |

Other tests:

|  | passed | failed | skipped | cannot run here | not reached | busy seconds |
|---|---|---|---|---|---|---|
| sig-apps | 0 | 0 | 0 | 1 | 0 | 0 |
| all | 0 | 0 | 0 | 1 | 0 | 0 |

From these runs; the last one that ran a test counts:

- 2026-01-02 04:04, 1m0s, commit abc: first. 1 passed, 1 failed
- 2026-01-02 05:04, 1m0s, commit abc: second. 1 passed, 0 failed

### An engine that speaks API 1.24 at most

Conformance tests:

|  | passed | failed | skipped | cannot run here | not reached | busy seconds |
|---|---|---|---|---|---|---|
| sig-node | 0 | 1 | 0 | 0 | 0 | 0 |
| all | 0 | 1 | 0 | 0 | 0 | 0 |

Failed:

- [sig-node] A works [Conformance]: no such \| field

From these runs; the last one that ran a test counts:

- 2026-01-02 06:04, 1m0s, commit abc: third. 0 passed, 1 failed
`
	if text != want {
		t.Errorf("got:\n%s\nwant:\n%s", text, want)
	}
	if !strings.Contains(end, limits[0].reason) || !strings.Contains(end, classes[0].reason) {
		t.Errorf("the page lacks the tests that cannot run:\n%s", end)
	}

	// Another checkout has one run with the unmodified engine, and one with an engine that the page does not list.
	other, said := record{}, &strings.Builder{}
	other.add(&report{plan: plan{Selection: "few"}, when: day, outcomes: []outcome{{Name: a, State: passed}, {Name: b, State: passed}}})
	other.add(&report{plan: plan{Selection: "new", Engine: "1.41"}, when: day, outcomes: []outcome{{Name: a, State: passed}}})
	if err := writeDocs(page, other, said); err != nil {
		t.Fatal(err)
	}
	merged, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if kept, _, _ := strings.Cut(string(merged), "\n### An engine that speaks API 1.41"); !strings.HasPrefix(string(data), kept) {
		t.Errorf("what the page told already has changed:\n%s", merged)
	}
	if !strings.Contains(string(merged), "commit : new. 1 passed") || !strings.Contains(said.String(), "has 3 tests, this checkout's runs have 2: the section stays") {
		t.Errorf("said %q, page:\n%s", said, merged)
	}
}

// TestArchive checks two images that share a layer for the format of docker save: each layer once, digests as IDs.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	base, err := writeLayer(filepath.Join(dir, "base.tar"), []entry{{name: "bin/", mode: 0o755}, {name: "bin/sh", mode: 0o755, data: []byte("x")}, {name: "bin/ash", link: "sh"}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := writeLayer(filepath.Join(dir, "again.tar"), []entry{{name: "bin/", mode: 0o755}, {name: "bin/sh", mode: 0o755, data: []byte("x")}, {name: "bin/ash", link: "sh"}})
	if err != nil || again.digest != base.digest {
		t.Errorf("the same entries give %v and %v, %v", base, again, err)
	}
	images := []image{{name: "a:1", layers: []layer{base}}, {name: "b:1", layers: []layer{base}, user: "7"}, {name: "c:1", layers: []layer{base}, user: "7"}}
	archive := filepath.Join(dir, "archive.tar")
	list, err := writeArchive(archive, images)
	if err != nil {
		t.Fatal(err)
	}
	if list[1].ID == list[2].ID {
		t.Error("images with different names have one id: an engine could report either name")
	}
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var names []string
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if id, ok := strings.CutSuffix(header.Name, ".json"); ok && id != "manifest" {
			data, err := io.ReadAll(r)
			if err != nil || sum(data) != id {
				t.Errorf("%s is not named for its digest %s, %v", header.Name, sum(data), err)
			}
		}
	}
	if len(names) != 5 { // three configurations, one layer, the manifest
		t.Errorf("the archive holds %q", names)
	}
}
