package app

import (
	"fmt"
	"time"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
)

// service describes the proxy to the Windows service manager.
var service = daemon.Program{
	Name: "kube-proxy", Title: "Kubernetes proxy (winkube)", About: "Serves the Services of the Kubernetes cluster on this node.",
	Env:   []string{envInterface, "KUBE_NETWORK", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"},
	Check: checkService,
	Skew:  skew,
}

// skew asks the API server in a service's flags for its version.
func skew(args []string) error {
	o, _, err := parse(args)
	if err != nil {
		return err
	}
	config, err := o.clientConfig()
	if err != nil {
		return err
	}
	return kubeclient.AskSkew(config, daemon.Kubernetes)
}

// checkService checks a service's flags as run does, so that mistakes show when the service is created, not later in
// the event log.
func checkService(args []string) (time.Duration, error) {
	o, fs, mistake := parse(args)
	if fs == nil {
		return 0, mistake
	}
	if fs.NArg() > 0 {
		return 0, fmt.Errorf("argument %q: want flags only", fs.Arg(0))
	}
	if o.cleanup || o.writeConfigTo != "" || o.initOnly {
		return 0, fmt.Errorf("--cleanup, --write-config-to and --init-only make the program exit, so they cannot be arguments of a service")
	}
	if err := daemon.CheckPaths(fs); err != nil {
		return 0, err
	}
	if mistake != nil {
		return 0, mistake
	}
	facts, err := host.Read()
	if err != nil {
		return 0, err
	}
	_, err = o.settings(facts)
	return 0, o.file.Located(err)
}
