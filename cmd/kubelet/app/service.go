package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
)

// service describes the kubelet as a Windows service.
var service = daemon.Program{
	Name: "kubelet", Title: "Kubernetes kubelet (winkube)", About: "Runs the pods of this Kubernetes node with Docker.",
	Env:   []string{"CONTAINER_NETWORK", "DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"},
	Check: checkService, Prepare: prepareService,
	Skew: skew, Beside: []string{criService.Name},
}

// afterPods is the time that the kubelet itself needs to stop, after its pods.
const afterPods = 15 * time.Second

// checkService checks a service's flags as run would, so that errors show at installation instead of in the event log.
func checkService(args []string) (time.Duration, error) {
	facts, err := host.Read()
	if err != nil {
		return 0, err
	}
	return checkServiceOn(facts, args)
}

// checkServiceOn is checkService for the host of facts.
func checkServiceOn(facts host.Facts, args []string) (time.Duration, error) {
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

// prepareService creates the directory that kubeadm join writes to (--kubeadm). kubeadm fails without it (kubernetes
// cmd/kubeadm/app/phases/kubelet/config.go WriteInstanceConfigToDisk). On Linux kubeadm's package creates it, on Windows its scripts.
func prepareService(args []string) error {
	o := &options{}
	if _, err := o.parse(args); err != nil || !o.from.joined {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.from.config), 0o700); err != nil {
		return fmt.Errorf("--kubeadm: %w", err)
	}
	return nil
}

// configToCome says whether --config names a file that kubeadm join has yet to write.
func (o *options) configToCome() bool {
	if o.from.config == "" || o.from.kubeadm+o.api.bootstrapKubeconfig == "" {
		return false
	}
	_, err := os.Stat(o.from.config)
	return errors.Is(err, fs.ErrNotExist)
}

// skew compares the version of the API server of a service's flags with ours.
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
