package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/page"
)

func TestParse(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"", "help  []"},
		{"exec node1 -- ip route", "exec node1 [ip route]"},
		{"exec node1 ip route", "exec node1 [ip route]"},
		{"exec node1 -- sh -c true -- x", "exec node1 [sh -c true -- x]"},
		{"exec node1 --", "exec: want a host and a command, such as: go run ./hack/cluster exec node1 -- ip route"},
		{"exec node1", "exec: want a host and a command, such as: go run ./hack/cluster exec node1 -- ip route"},
		{"restart node2 kubelet", "restart node2 [kubelet]"},
		{"restart node2", "restart: want a host and a process, such as: go run ./hack/cluster restart node1 kubelet"},
		{"up --agents=false", "up  [--agents=false]"},
		{"down now", `down: unexpected arguments ["now"]: run go run ./hack/cluster down without them`},
		{"start", "start: unknown command; the commands are:\n" + strings.TrimRight(usage, "\n")},
	} {
		r, err := parse(strings.Fields(test.line))
		got := fmt.Sprintf("%s %s %s", r.verb, r.host, r.argv)
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%q:\ngot  %s\nwant %s", test.line, got, test.want)
		}
	}
}

// TestDocumentedCommands: this program accepts each of its command lines in the pages, and the hosts and processes in them exist.
func TestDocumentedCommands(t *testing.T) {
	root, err := lab.FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := page.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	c := lab.New(root, io.Discard)
	found := 0
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range page.Commands(string(text), "go") {
			if len(command.Argv) < 3 || command.Argv[1] != "run" || command.Argv[2] != "./hack/cluster" {
				continue
			}
			found++
			r, err := parse(command.Argv[3:])
			if err == nil && r.host != "" {
				var h *lab.Host
				if h, err = host(c, r.host); err == nil && r.verb == "restart" && !slices.Contains(h.ProcessNames(), r.argv[0]) {
					err = fmt.Errorf("%s has no process %s", r.host, r.argv[0])
				}
			}
			if err != nil {
				t.Errorf("%s:%d: %s: %v", filepath.Base(path), command.Line, command.Text, err)
			}
		}
	}
	if found < 3 {
		t.Errorf("%d command lines: this test does not see the pages", found)
	}
}
