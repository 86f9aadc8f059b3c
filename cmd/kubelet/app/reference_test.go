package app

import (
	"flag"
	"testing"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/daemon/daemontest"
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
	daemontest.Page(t, page, got, *update)
}

var systemFlags = []string{"root-dir", "pod-logs-dir", "volume-plugin-dir", "resolv-conf", "log-file-max-size", "eviction-hard"}
