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
		{"a package that does not build", "package: a.go:1:2: undefined: x\npackage: FAIL\nfail ", "the package failed after 0 s (example):\na.go:1:2: undefined: x\nFAIL\n"},
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
	if err := report(nil, strings.NewReader("ok\n")); err == nil || !strings.Contains(err.Error(), `want a line of go test -json, got "ok"`) {
		t.Errorf("a line that is no event: %v", err)
	}
}
