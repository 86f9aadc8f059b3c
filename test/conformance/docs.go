package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/winkube/winkube/test/lab"
)

const docsHead = `# Conformance

<!-- Written by go run ./test/conformance -update-docs; do not edit. -->

Upstream's own end-to-end suite (release %s) tests what a node must do. It runs against our kubelet and proxy on the lab cluster:
a real control plane, and two nodes with a Docker engine each.

    make conformance                                  the conformance tests that depend on the node, except the Serial ones
    make conformance SIGS=sig-node,sig-storage        only tests of these groups
    make conformance FOCUS='Probing container'        only tests whose name matches; SKIP= leaves out tests that match
    make conformance SERIAL=1                         the Serial tests
    make conformance SUBSET=1                         a few tests of each subject, in minutes
    make conformance PROCS=4 NODES=1                  number of parallel tests (8), of schedulable nodes (2); three are in three zones
    make conformance ALL=1 FOCUS='InPlace'            also tests that are not marked Conformance
    make conformance WIDE=1                           the tests beyond Conformance that this cluster can run; with SERIAL=1 the Serial ones
    make conformance NETWORK_MODE=overlay             another mode of the pod network; also cni
    make conformance WIDE=1 DUAL_STACK=1              a cluster with addresses of both families, and the tests that need one
    make conformance STORAGE=csi                      the tests of provisioned volumes, on a cluster with a CSI driver
    WINKUBE_SUITE=1 make test-vm                      VM=1 go run ./test/conformance, on a virtual machine, with what such a machine can run
    make conformance RUNTIME=runc-privileged WIDE=1   also tests of privileged containers and of CSI's mock driver, on one node
    make conformance ENGINE=29                        Docker 29 with containerd's image store; also 29-overlay2, 29-nftables, 28 and 25
    make conformance CONTROL_PLANE=1.33               a control plane older than the nodes and the suite; with 1.37 a newer one
    make conformance ENGINE_API=1.24                  an engine that speaks API 1.24 at most; also 1.41 (at most) and min1.44 (at least)

The suite, ginkgo and the programs in the images are built from the module k8s.io/kubernetes (hack/tools/kubernetes). The images are
built here too, in _output/images, and need no registry:

- agnhost is based on a small Debian with busybox as shell and wget. Upstream's is based on Alpine, which has the same.
- busybox is built from Debian's source with the setting DI_ENV_HACK. Without it its shell drops variables with unusual names.
- nginx is agnhost's web server.

Each host has its own host name, the name of its Node. A run leaves these files in _output/conformance (with
WINKUBE_CLUSTER=NAME in NAME below it): the suite's report (report.json, junit.xml), all output (output.log) and a log per failure
(failures/). ` + "`go run ./test/conformance -report`" + ` prints the report of the last run again.

ENGINE selects an engine that is built from its module (hack/tools/dockerd-*), with containerd 2 and runc 1.5. [Engines](engines.md) has what was
run on which.

STORAGE=csi runs the CSI driver of test/csidriver with upstream's provisioner, attacher, resizer and snapshotter (hack/tools/csi-sidecars).
Its tests are upstream's External Storage for what test/conformance/storage-driver.yaml says of the driver, and those that need a default
StorageClass. The driver has no limits of volumes, capacity, groups of snapshots or VolumeAttributesClasses; the suite
skips their tests.

RUNTIME=runc-privileged starts privileged containers on a machine that cannot grant CAP_SYS_RESOURCE. They get all other capabilities
(test/lab/privileged.go). The tests run on the first node, whose kubelet works in /var/lib/kubelet, as upstream's manifests expect. With WIDE=1
they include those of CSI with a mock driver, "CSI Mock". The suite brings the driver. It runs in the suite itself while test/csipod
forwards its socket from the pod, or in the pod (hack/tools/kubernetes/mockdriver). The sidecars beside it are upstream's, except
the registrar, which is no Go module: csipod takes its place.

test/engineproxy simulates engines of other versions. It runs between kubelet and engine and refuses the API versions that such an engine
refuses. From requests it removes the fields that an older engine ignores. From answers it removes the fields that an older engine lacks,
or that a newer engine has dropped.

## Results
`

// docsTail follows the results.
const docsTail = `
## What these machines cannot show

These features cannot be tested here, in addition to the tests above. Three of them were seen on a
virtual machine: ` + "`" + `make test-vm` + "`" + `, [A real host](real-host.md).

| what | why | proof | shown instead |
|---|---|---|---|
| AppArmor profiles in force | the kernel has no AppArmor | /sys/module/apparmor is missing | pods that ask for one are rejected with reason AppArmor: e2e TestBadPods/apparmor; in force on the virtual machine |
| SELinux labels in force | the kernel has no SELinux | /sys/fs/selinux is missing | golden files of pkg/docker/convert |
| cgroup version 2 | its hierarchy has no controller for CPU, memory or processes: version 1 holds them | cgroup.controllers of a mounted cgroup2: hugetlb | the virtual machine; pkg/cgroup with a fake of the kernel's files |
| cgroups by systemd | systemd does not run and cannot run: it is not process 1 | /proc/1/comm | the virtual machine; pkg/cgroup over a real message bus |

Recursively read-only mounts need Docker Engine 25 or later, which is newer than Debian's: ` + "`" + `make up ENGINE=28` + "`" + `. This was last done on 2026-11-22 with
Docker 28.5.2, built from its sources, API 1.51, and Debian's containerd and runc:

- ` + "`" + `make up` + "`" + `: all 32 checks passed.
- ` + "`" + `make conformance SUBSET=1` + "`" + `: 120 passed, 0 failed, in 4m55s.
- e2e TestRecursiveReadOnly, TestFields, TestBadPods, TestHostPortsWithoutEngine and TestEngineRestartLive passed.
`

// writeDocs writes the page from all recorded runs. It keeps a section of the page that lists more tests than this
// record, because it comes from another checkout's runs, and writes a line about that to said.
func writeDocs(path string, rec record, said io.Writer) error {
	page, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sections := pageSections(string(page))
	for name, results := range rec {
		title := engineTitle(name)
		if told := testsTold(sections[title]); told > len(results.Tests) {
			fmt.Fprintf(said, "%s: the section %q has %d tests, this checkout's runs have %d: the section stays as it is\n", path, title, told, len(results.Tests))
			continue
		}
		var section strings.Builder
		writeEngine(&section, name, results)
		sections[title] = section.String()
	}
	var out strings.Builder
	fmt.Fprintf(&out, docsHead, lab.SuiteVersion)
	for _, title := range slices.SortedFunc(maps.Keys(sections), plainFirst) {
		out.WriteString(sections[title])
	}
	out.WriteString("\n## What `WIDE=1` leaves out\n\n| Tests | They need |\n|---|---|\n")
	for _, c := range classes {
		fmt.Fprintf(&out, "| `%s` | %s |\n", cell(c.name.String()), cell(c.reason))
	}
	out.WriteString("\n## What some machines cannot run\n\nTests are left out where the reason applies, on this machine or in this mode. They are never counted as passed.\n\n| Tests | Reason | Proof |\n|---|---|---|\n")
	for _, l := range limits {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", cell(l.name.String()), cell(l.reason), cell(l.proof))
	}
	out.WriteString(docsTail)
	return os.WriteFile(path, []byte(out.String()), 0o644)
}

// pageSections returns the result sections of a page by title, each with the empty line before it.
func pageSections(page string) map[string]string {
	sections := map[string]string{}
	_, results, _ := strings.Cut(page, "\n## Results\n")
	results, _, _ = strings.Cut(results, "\n## ")
	for part := range strings.SplitSeq(results, "\n### ") {
		if title, _, ok := strings.Cut(part, "\n"); ok && strings.TrimSpace(title) != "" {
			sections[title] = "\n### " + part
		}
	}
	return sections
}

// testsTold returns how many tests the tables of a section list.
func testsTold(section string) (sum int) {
	for line := range strings.Lines(section) {
		cells, ok := strings.CutPrefix(line, "| all |")
		if !ok {
			continue
		}
		counts := strings.Split(cells, "|")
		for _, count := range counts[:max(0, len(counts)-2)] { // the last but one is their duration
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			sum += n
		}
	}
	return sum
}

// plainFirst orders titles: the unmodified engine first, then the others.
func plainFirst(a, b string) int {
	rank := func(title string) int {
		if strings.HasPrefix(title, engineTitle("")) {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
}

// writeEngine writes the results for one engine.
func writeEngine(out io.Writer, name string, results *results) {
	fmt.Fprintf(out, "\n### %s\n", engineTitle(name))
	var conformance, others []outcome
	for _, test := range slices.Sorted(maps.Keys(results.Tests)) {
		one := results.Tests[test].outcome
		if strings.Contains(test, "[Conformance]") {
			conformance = append(conformance, one)
		} else {
			others = append(others, one)
		}
	}
	for _, set := range []struct {
		title    string
		outcomes []outcome
	}{{"Conformance tests", conformance}, {"Other tests", others}} {
		if len(set.outcomes) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s:\n\n", set.title)
		for i, row := range table(set.outcomes) {
			fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(row)))
			}
		}
	}
	for _, kind := range []struct {
		state state
		head  string
	}{{failed, "Failed"}, {unreached, "Without a verdict"}, {skipped, "Skipped by the suite itself"}} {
		list := append(having(conformance, kind.state), having(others, kind.state)...)
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s:\n\n", kind.head)
		for _, line := range byMessage(list) {
			fmt.Fprintf(out, "- %s\n", line)
		}
	}
	io.WriteString(out, "\nFrom these runs; the last one that ran a test counts:\n\n")
	for _, run := range results.Runs {
		if slices.ContainsFunc(slices.Collect(maps.Values(results.Tests)), func(t dated) bool { return t.Run.Equal(run.When) }) {
			fmt.Fprintf(out, "- %s, %s, commit %s: %s. %s\n", run.When.UTC().Format("2006-01-02 15:04"), run.Took.Round(time.Second), run.Commit, run.Selection, run.Count)
		}
	}
}

// byMessage returns one line per outcome, or one line for several outcomes that share a message.
func byMessage(list []outcome) []string {
	const many = 5
	message := func(o outcome) string { return cell(strings.TrimSpace(firstLines(o.Message, 1))) }
	count := map[string]int{}
	for _, one := range list {
		count[message(one)]++
	}
	var lines []string
	for _, one := range list {
		if m := message(one); count[m] < many {
			lines = append(lines, one.Name+": "+m)
		} else if n := fmt.Sprintf("%d tests: %s", count[m], m); !slices.Contains(lines, n) {
			lines = append(lines, n)
		}
	}
	return lines
}

// lacking describes the values of PROXY_LACKS.
var lacking = map[string]string{"cgroup2": "a cgroup2 file system", "bpffs": "a bpf file system that can be written", "rights": "the right to use BPF"}

// engineTitle returns the title for the engine that the kubelet saw.
func engineTitle(name string) string {
	switch name {
	case "":
		return "The engine as it is"
	case "min1.44":
		return "An engine that speaks API 1.44 to 1.52"
	}
	if !strings.Contains(name, "=") {
		return "An engine that speaks API " + name + " at most"
	}
	title, modes := engineTitle(""), ""
	for word := range strings.FieldsSeq(name) {
		switch mark, value, _ := strings.Cut(word, "="); mark + "=" {
		case releaseMark:
			title = lab.DescribeRelease(value)
		case runtimeMark:
			modes += ", runtime " + value
		case controlMark:
			modes += ", control plane " + value
		case networkMark:
			modes += ", --network-mode=" + value
		case storageMark:
			modes += ", volumes provisioned by a CSI driver"
		case machineMark:
			title = "A virtual machine"
		case dualMark:
			modes += ", addresses of both families"
		case interfacesMark:
			modes += ", --pod-interfaces=" + value
		case proxyMark:
			modes += ", --proxy-mode=" + value
		case lacksMark:
			modes += " without " + lacking[value]
		}
	}
	return title + modes
}

// cell escapes text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
