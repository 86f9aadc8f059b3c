package main

import (
	"fmt"
	"os"
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

The suite, ginkgo and the images' programs are built from the module k8s.io/kubernetes (hack/tools/kubernetes), the images here too
(_output/images): no registry is asked. agnhost stands on a small Debian; busybox is built of Debian's source with the setting
DI_ENV_HACK, without which its shell drops variables with odd names; nginx is agnhost's web server. A run leaves in _output/conformance
the suite's report (report.json, junit.xml), all output (output.log) and a log per failure (failures/). ` + "`go run ./test/conformance -report`" + `
prints the last run's report again.

## Last run
`

// writeDocs writes the page from a report.
func writeDocs(path string, r *report) error {
	var out strings.Builder
	fmt.Fprintf(&out, docsHead, lab.SuiteVersion)
	fmt.Fprintf(&out, "%s, %s: %s.\n\n", r.when.UTC().Format(time.DateOnly), r.took.Round(time.Second), r.plan.Selection)
	for i, row := range r.table() {
		fmt.Fprintf(&out, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&out, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	if len(r.failures) > 0 {
		out.WriteString("\nFailed:\n\n")
		for _, one := range r.failures {
			fmt.Fprintf(&out, "- %s: %s\n", one.Name, cell(strings.TrimSpace(firstLines(one.Message, 1))))
		}
	}
	if len(r.skipped) > 0 {
		out.WriteString("\nSkipped by the suite itself:\n\n")
		for _, one := range r.skipped {
			fmt.Fprintf(&out, "- %s: %s\n", one.Name, cell(strings.TrimSpace(firstLines(one.Message, 1))))
		}
	}
	out.WriteString("\n## What some machines cannot run\n\nThese are left out where the reason holds, and never counted as passed.\n\n| Tests | Reason | Proof |\n|---|---|---|\n")
	for _, l := range limits {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", cell(l.name.String()), cell(l.reason), cell(l.proof))
	}
	return os.WriteFile(path, []byte(out.String()), 0o644)
}

// cell makes text safe inside a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
