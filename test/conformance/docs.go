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

Upstream's own end-to-end suite (release %s) is the judge of what a node must do. It runs against our kubelet and proxy on the lab
cluster: a real control plane, and two nodes with a Docker engine each.

    make conformance                                  every conformance test for which a node matters, not the Serial ones
    make conformance SIGS=sig-node,sig-storage        of these groups
    make conformance FOCUS='Probing container'        those with such a name; SKIP= leaves out
    make conformance SERIAL=1                         the Serial ones
    make conformance SUBSET=1                         a few of each subject, in minutes
    make conformance PROCS=4 NODES=1                  tests at once (8), schedulable nodes (2)
    make conformance ALL=1 FOCUS='InPlace'            also tests that are not marked Conformance
    make conformance WIDE=1                           the tests beyond Conformance that this cluster can run
    make conformance NETWORK_MODE=overlay             in another mode of the pod network; also cni
    make conformance ENGINE_API=1.24                  with an engine that speaks API 1.24 at most; also 1.41, and min1.44: 1.44 at least

The suite, ginkgo and the images' programs are built from the module k8s.io/kubernetes (hack/tools/kubernetes), the images here too
(_output/images): no registry is asked. agnhost stands on a small Debian with the shell and the wget of busybox, as upstream's has them of
Alpine; busybox is built of Debian's source with the setting DI_ENV_HACK, without which its shell drops variables with odd names; nginx is
agnhost's web server. Each host has a host name of its own, that of its Node. A run leaves in _output/conformance
the suite's report (report.json, junit.xml), all output (output.log) and a log per failure (failures/). ` + "`go run ./test/conformance -report`" + `
prints the last run's report again.

An engine of another version is played by test/engineproxy, which stands between kubelet and engine: it refuses versions as that engine does,
takes out of requests what the old ignore, and out of answers what the old did not have yet and the new no longer have.

## Results
`

// docsTail stands below the results.
const docsTail = `
## What these machines cannot show

Beside the tests above. What is said here is covered by unit tests with fakes of the kernel or the engine, and nothing more.

| what | why | proof | shown instead |
|---|---|---|---|
| AppArmor profiles in force | the kernel has no AppArmor | /sys/module/apparmor is missing | pods that ask for one are rejected with reason AppArmor: e2e TestBadPods/apparmor; the engine's options: golden files of pkg/docker/convert |
| SELinux labels in force | the kernel has no SELinux | /sys/fs/selinux is missing | golden files of pkg/docker/convert |
| cgroup version 2 | its hierarchy has no controller for CPU, memory or processes: version 1 holds them | cgroup.controllers of a mounted cgroup2: hugetlb | pkg/cgroup with a fake of the kernel's files |
| cgroups by systemd | no systemd runs, and none can: process 1 is another | /proc/1/comm | pkg/cgroup with a fake of busctl |

Recursively read-only mounts and engines newer than Debian's want a Docker Engine from 25 on: ` + "`" + `PATH=DIRECTORY:$PATH make up` + "`" + ` takes the dockerd and docker-proxy that stand in DIRECTORY. On 2026-11-22
Docker 28.5.2, built from its sources, with API 1.51: the 32 checks of ` + "`" + `make up` + "`" + `; ` + "`" + `SUBSET=1` + "`" + `: 120 passed, 0 failed, in 4m55s; e2e TestRecursiveReadOnly, TestFields, TestBadPods,
TestHostPortsWithoutEngine and TestEngineRestartLive passed.
`

// writeDocs writes the page from all that is on record here. A section of the page that tells of more tests than this record has comes from another
// checkout's runs: it stays, which said is told.
func writeDocs(path string, rec record, said io.Writer) error {
	page, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sections := pageSections(string(page))
	for name, results := range rec {
		title := engineTitle(name)
		if told := testsTold(sections[title]); told > len(results.Tests) {
			fmt.Fprintf(said, "%s: the section %q tells of %d tests, this checkout's runs of %d: it stays as it is\n", path, title, told, len(results.Tests))
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
	out.WriteString("\n## What some machines cannot run\n\nThese are left out where the reason holds, and never counted as passed.\n\n| Tests | Reason | Proof |\n|---|---|---|\n")
	for _, l := range limits {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", cell(l.name.String()), cell(l.reason), cell(l.proof))
	}
	out.WriteString(docsTail)
	return os.WriteFile(path, []byte(out.String()), 0o644)
}

// pageSections are the results of a page by their titles, each with the empty line before it.
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

// testsTold is how many tests the tables of a section tell of.
func testsTold(section string) (sum int) {
	for line := range strings.Lines(section) {
		cells, ok := strings.CutPrefix(line, "| all |")
		if !ok {
			continue
		}
		counts := strings.Split(cells, "|")
		for _, count := range counts[:max(0, len(counts)-2)] { // the last but one is their time
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			sum += n
		}
	}
	return sum
}

// plainFirst orders titles: the engine as it is, then the others.
func plainFirst(a, b string) int {
	rank := func(title string) int {
		if strings.HasPrefix(title, engineTitle("")) {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
}

// writeEngine writes the results with one engine.
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

// byMessage is a line for each outcome, and one for all those that share a message where they are many.
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

// engineTitle names the engine that the kubelet saw.
func engineTitle(name string) string {
	switch name {
	case "":
		return "The engine as it is"
	case "min1.44":
		return "An engine that speaks API 1.44 to 1.52"
	}
	if mode, ok := strings.CutPrefix(name, networkMark); ok {
		return "The engine as it is, --network-mode=" + mode
	}
	return "An engine that speaks API " + name + " at most"
}

// cell makes text safe inside a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
