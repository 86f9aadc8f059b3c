package app

import (
	"flag"
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
)

// TestReference compares the page of flags with the program's flags.
func TestReference(t *testing.T) {
	const page = "../../../docs/reference/kubelet-flags.md"
	o, fs := parse(t)
	for _, name := range systemFlags { // their defaults differ between systems, or only one system has them
		if f := fs.Lookup(name); f != nil {
			f.DefValue, f.Hidden = "", true
		}
	}
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	logs.VisitAll(func(f *flag.Flag) { fs.Lookup(f.Name).DefValue = "" }) // another test may have set them
	got := daemon.Reference("`kubelet`", "KubeletConfiguration", fs, o.fields)
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(want), "\r\n", "\n") != got {
		t.Errorf("%s differs from the program's flags (run with -update)", page)
	}
}

var systemFlags = []string{"root-dir", "pod-logs-dir", "volume-plugin-dir", "resolv-conf", "log-file-max-size", "eviction-hard"}
