package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cri"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// criOptions are the flags of `kubelet cri`, with the same meaning as the kubelet's.
type criOptions struct {
	listen, endpoint, image, logs string
}

func (o *criOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.listen, "listen", cri.DefaultEndpoint, "`address` to which kubeadm connects: unix:// or npipe://")
	fs.StringVar(&o.endpoint, "docker-endpoint", "", "Docker Engine's `address`: unix://, npipe:// or tcp:// (default: $DOCKER_HOST or the platform's)")
	fs.StringVar(&o.image, "pod-infra-container-image", defaultInfraImage, "the same as the kubelet's")
	fs.StringVar(&o.logs, "pod-logs-dir", defaultPodLogsDir(), "`directory` of links to containers' logs, the same as the kubelet's")
}

// criService describes `kubelet cri` as a Windows service.
var criService = daemon.Program{
	Name: "kubelet-cri", Title: "Kubernetes kubelet cri (winkube)", About: "Answers kubeadm's requests to a container runtime.",
	Command: []string{"cri"}, Env: []string{"DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"}, Check: checkCRIService,
}

// checkCRIService checks the flags of a service, so that errors show at its installation.
func checkCRIService(args []string) (time.Duration, error) {
	o, fs := &criOptions{}, pflag.NewFlagSet("cri", pflag.ContinueOnError)
	daemon.AddFlags(fs)
	o.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		return 0, err
	}
	if fs.NArg() > 0 {
		return 0, fmt.Errorf("argument %q: want flags only", fs.Arg(0))
	}
	if err := cri.CheckEndpoint(o.listen); err != nil {
		return 0, fmt.Errorf("--listen=%w", err)
	}
	if err := daemon.CheckPaths(fs); err != nil {
		return 0, err
	}
	_, err := o.engine()
	return 0, err
}

// newCRICommand returns `kubelet cri`.
func newCRICommand(code *int) *cobra.Command {
	o := &criOptions{}
	command := &cobra.Command{
		Use:   "cri",
		Short: "Answers kubeadm's requests to a container runtime; a separate service",
		Long: "Answers requests of kubeadm join, reset and upgrade to a container runtime, on the socket or pipe where kubeadm looks for Docker.\n" +
			"It is a separate service because kubeadm asks before the kubelet is started and after it is stopped.",
		Args: cobra.NoArgs,
	}
	fs := command.Flags()
	daemon.AddFlags(fs)
	o.addFlags(fs)
	command.RunE = func(*cobra.Command, []string) error {
		engine, err := o.engine()
		if err != nil {
			return err
		}
		*code = daemon.Run(criService.Name, fs, func(ctx context.Context) error {
			listener, err := cri.Listen(o.listen)
			if err != nil {
				return err
			}
			klog.InfoS("Answering kubeadm", "endpoint", o.listen)
			return cri.New(engine, o.image).Serve(ctx, listener)
		})
		return nil
	}
	daemon.AddServiceCommand(command, criService)
	return command
}

// criEngine adapts the engine to package cri.
type criEngine struct {
	informer
	imageStore
	imageRoot
	pod.Runtime
}

type informer interface {
	Info(ctx context.Context) (docker.Info, error)
}

type imageRoot interface {
	ImageRoot(ctx context.Context) (string, error)
}

type imageStore interface {
	pod.Images
	ListImages(ctx context.Context) (list docker.ImageList, changed bool, err error)
}

// engine returns the engine without a Node's name: it covers all pods of this host.
func (o *criOptions) engine() (cri.Engine, error) {
	facts, err := host.Read()
	if err != nil {
		return nil, err
	}
	engine, err := docker.New(docker.Config{Host: o.endpoint, Platform: platformOf(facts), InfraImage: o.image, LogsDir: o.logs})
	if err != nil {
		return nil, fmt.Errorf("--docker-endpoint=%s: %w", o.endpoint, err)
	}
	return criEngine{engine.Client, engine.Images, engine.Usage, engine.Containers}, nil
}
