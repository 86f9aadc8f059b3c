package app

import (
	"flag"
	"testing"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/daemon/daemontest"
)

var updatePage = flag.Bool("update", false, "rewrite the page of flags")

// TestReference compares the page of flags with the program's flags.
func TestReference(t *testing.T) {
	const page = "../../../docs/reference/proxy-flags.md"
	_, fs := mustParse(t)
	for _, name := range systemFlags { // flags of one system only, or with defaults of one system
		if f := fs.Lookup(name); f != nil {
			f.DefValue, f.Hidden = "", true
		}
	}
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	logs.VisitAll(func(f *flag.Flag) { fs.Lookup(f.Name).DefValue = "" }) // another test may have set them
	got := daemon.Reference("`proxy`", "KubeProxyConfiguration", fs, bindings)
	daemontest.Page(t, page, got, *updatePage)
}

var systemFlags = []string{"interface"}
