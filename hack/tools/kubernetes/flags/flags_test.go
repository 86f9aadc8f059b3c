package main

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the lists")

// TestLists: the committed lists are those of the pinned version. After a change of version run it with -update.
func TestLists(t *testing.T) {
	for program, path := range map[string]string{
		"kubelet":    "../../../../cmd/kubelet/app/testdata/upstream-flags.txt",
		"kube-proxy": "../../../../cmd/kube-proxy/app/testdata/upstream-flags.txt",
	} {
		var out bytes.Buffer
		if err := list(&out, program); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, out.Bytes()) {
			t.Errorf("%s: %s differs from upstream's flags (%v)\n%s", program, path, err, out.Bytes())
		}
	}
}
