package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// events returns a run's events: "run TEST", "fail TEST", or "TEST: a line of its output", of one package.
func events(t *testing.T, script string) string {
	t.Helper()
	var all strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		e := event{Package: "example"}
		if test, text, ok := strings.Cut(line, ": "); ok && !strings.Contains(test, " ") {
			e.Action, e.Test, e.Output = "output", strings.TrimPrefix(test, "package"), text+"\n"
		} else {
			e.Action, e.Test, _ = strings.Cut(line, " ")
		}
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(string(data) + "\n")
	}
	return all.String()
}

func TestReport(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"nothing failed", "run A\nA:     a_test.go:1: fine\npass A\npass \n", ""},
		{"a subtest's messages, not its logs, and nothing for those above it", `run A
run A/b
A/b:      1.0 s  step: ok
A/b:     a_test.go:7: want 1
A/b:         got 2
A/b:     kubelet printed, at its end:
A/b:         I1128 core.go:111] "Stopping"
fail A/b
fail A
package: FAIL
fail `, "A/b failed after 0 s (example):\n    a_test.go:7: want 1\n        got 2\n"},
		{"a test that also printed a message beside a failed subtest", "A/b:     a_test.go:7: inner\nfail A/b\nA:     a_test.go:9: outer\nfail A\nfail ",
			"A/b failed after 0 s (example):\n    a_test.go:7: inner\nA failed after 0 s (example):\n    a_test.go:9: outer\n"},
		{"no message", "A: noise\nfail A\nfail ", "A failed after 0 s (example):\n    it printed no message\n"},
		{"a package that ends by itself", "package: cannot start the cluster\npackage: FAIL\nfail ", "the package failed after 0 s (example):\ncannot start the cluster\nFAIL\n"},
		{"a panic", "A: panic: out of range\nfail A\nfail ", "A failed after 0 s (example):\npanic: out of range\n"},
		{"a long message", "A:     a_test.go:1: " + strings.Repeat("x", length) + "\nfail A\nfail ",
			"A failed after 0 s (example):\n    a_test.go:1: " + strings.Repeat("x", length-17) + "\n        ... and 17 bytes more\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got strings.Builder
			if err := report(&got, strings.NewReader(events(t, test.script))); err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want {
				t.Errorf("got\n%s\nwant\n%s", got.String(), test.want)
			}
		})
	}
	const unbuilt = `{"ImportPath":"x [x.test]","Action":"build-output","Output":"./x_test.go:3:27: undefined: y\n"}
{"ImportPath":"x [x.test]","Action":"build-fail"}
{"Action":"output","Package":"x","Output":"FAIL\tx [build failed]\n"}
{"Action":"fail","Package":"x","Elapsed":0,"FailedBuild":"x [x.test]"}
`
	var got strings.Builder
	if err := report(&got, strings.NewReader(unbuilt)); err != nil || got.String() != "the package failed after 0 s (x):\n./x_test.go:3:27: undefined: y\n" {
		t.Errorf("a package that does not build: %v, %s", err, got.String())
	}
	if err := report(nil, strings.NewReader("ok\n")); err == nil || !strings.Contains(err.Error(), `want a line of go test -json, got "ok"`) {
		t.Errorf("a line that is no event: %v", err)
	}
}
