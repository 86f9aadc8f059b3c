package app

import (
	"flag"
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
)

// TestReference holds the page of flags to the program's own table.
func TestReference(t *testing.T) {
	const page = "../../../docs/reference/kubelet-flags.md"
	o, fs := parse(t)
	for _, name := range systemFlags { // whose defaults are of one system, or that one system alone has
		if f := fs.Lookup(name); f != nil {
			f.DefValue, f.Hidden = "", true
		}
	}
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	logs.VisitAll(func(f *flag.Flag) { fs.Lookup(f.Name).DefValue = "" }) // they are what another test has set
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

var systemFlags = []string{"root-dir", "pod-logs-dir", "resolv-conf", "log-file-max-size", "eviction-hard"}
