package app

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
)

// service is the kubelet as Windows' service manager knows it.
var service = daemon.Program{
	Name: "kubelet", Title: "Kubernetes kubelet (winkube)", About: "Runs the pods of this Kubernetes node with Docker.",
	Env:   []string{"CONTAINER_NETWORK", "DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"},
	Check: checkService,
}

// afterPods is what the kubelet itself needs to stop, beside its pods.
const afterPods = 15 * time.Second

// checkService looks at a service's flags as run would, so that a mistake is seen by who makes it and not by the event log.
func checkService(args []string) (time.Duration, error) {
	o := &options{}
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	daemon.AddFlags(fs)
	o.addFlags(fs)
	if err := addRetiredFlags(fs); err != nil {
		return 0, err
	}
	if err := fs.Parse(args); err != nil {
		return 0, err
	}
	if fs.NArg() > 0 {
		return 0, fmt.Errorf("argument %q: want flags only", fs.Arg(0))
	}
	if err := daemon.CheckPaths(fs); err != nil {
		return 0, err
	}
	facts, err := host.Read()
	if err != nil {
		return 0, err
	}
	cfg, err := o.settings(facts)
	if err != nil || cfg.Shutdown.Grace == 0 {
		return 0, err
	}
	return cfg.Shutdown.Grace + afterPods, nil
}
