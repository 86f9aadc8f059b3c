package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
)

// service is the kubelet as Windows' service manager knows it.
var service = daemon.Program{
	Name: "kubelet", Title: "Kubernetes kubelet (winkube)", About: "Runs the pods of this Kubernetes node with Docker.",
	Env:   []string{"CONTAINER_NETWORK", "DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"},
	Check: checkService,
	Skew:  skew,
}

// afterPods is what the kubelet itself needs to stop, beside its pods.
const afterPods = 15 * time.Second

// checkService looks at a service's flags as run would, so that a mistake is seen by who makes it and not by the event log.
func checkService(args []string) (time.Duration, error) {
	o := &options{}
	flags, err := o.parse(args)
	if err != nil {
		return 0, err
	}
	if flags.NArg() > 0 {
		return 0, fmt.Errorf("argument %q: want flags only", flags.Arg(0))
	}
	if o.from.writeTo != "" {
		return 0, fmt.Errorf("--write-config-to=%s: the program exits after writing, so this cannot be an argument of a service", o.from.writeTo)
	}
	if err := daemon.CheckPaths(flags); err != nil {
		return 0, err
	}
	facts, err := host.Read()
	if err != nil {
		return 0, err
	}
	if o.from.config+o.from.dir != "" && !o.configToCome() {
		if o, _, err = o.withFiles(flags, args, facts.OS); err != nil {
			return 0, err
		}
	}
	cfg, err := o.settings(facts)
	if err != nil || cfg.Shutdown.Total() == 0 {
		return 0, o.file.Located(err)
	}
	return cfg.Shutdown.Total() + afterPods, nil
}

// configToCome says whether --config names a file that kubeadm join is still to write.
func (o *options) configToCome() bool {
	if o.from.config == "" || o.from.kubeadm+o.api.bootstrapKubeconfig == "" {
		return false
	}
	_, err := os.Stat(o.from.config)
	return errors.Is(err, fs.ErrNotExist)
}

// skew asks the API server of a service's flags for its version.
func skew(args []string) error {
	o := &options{}
	flags, err := o.parse(args)
	if err != nil {
		return err
	}
	facts, err := host.Read()
	if err != nil {
		return err
	}
	o, _, err = o.withFiles(flags, args, facts.OS)
	if err != nil {
		return err
	}
	config, err := o.clientConfig()
	if err != nil {
		return err
	}
	return kubeclient.AskSkew(config, daemon.Kubernetes)
}
