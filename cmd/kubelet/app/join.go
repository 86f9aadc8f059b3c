package app

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/kubelet"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/stats"
)

// clientConfig is the API client configuration with the node's own credentials.
func (o *options) clientConfig() (*rest.Config, error) {
	return kubeclient.Config(kubeclient.Options{Kubeconfig: o.api.kubeconfig, Server: o.api.servers, UserAgent: daemon.UserAgent("kubelet"),
		QPS: float32(*o.config.KubeAPIQPS), Burst: int(o.config.KubeAPIBurst), ContentType: o.config.ContentType})
}

// join obtains credentials and runs the kubelet with them. /healthz is served from the start: installers such as kubeadm wait for it first, and for
// the credentials next.
func (o *options) join(ctx context.Context, cfg kubelet.Config) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if cfg.Healthz != "" {
		healthz, err := server.NewHealthz(ctx, cfg.Healthz)
		if err != nil {
			return err
		}
		beside.Go(func() { background(ctx, "healthz", healthz.Run) })
	}
	if cfg.Platform.OS == "windows" { // Users can otherwise read everything created below C:\
		if _, err := daemon.ProtectDir(o.certDirectory()); err != nil {
			klog.InfoS("Warning: other accounts of this host may read the kubelet's keys", "directory", o.certDirectory(), "err", err)
		}
	}
	identity := kubeclient.NodeIdentity{NodeName: cfg.NodeName, Bootstrap: o.api.bootstrapKubeconfig, Kubeconfig: o.api.kubeconfig,
		CertDir: o.certDirectory(), UserAgent: daemon.UserAgent("kubelet")}
	if o.api.kubeconfig != "" {
		if err := identity.Join(ctx); err != nil {
			return err
		}
	}
	config, err := o.clientConfig()
	if err != nil {
		return err
	}
	if o.config.RotateCertificates && o.api.kubeconfig != "" {
		if config, cfg.Client, err = identity.Rotating(config); err != nil {
			return fmt.Errorf("--rotate-certificates: %w", err)
		}
		if cfg.Client != nil {
			beside.Go(func() { background(ctx, "client certificate", cfg.Client.Run) })
		}
	}
	cfg.Counters = stats.NewCounters()
	config.Wrap(cfg.Counters.Transport)
	clients, err := kubeclient.NewClients(config, heartbeatPatience(cfg.Node.LeaseDuration))
	if err != nil {
		return fmt.Errorf("--kubeconfig=%s: %w", o.api.kubeconfig, err)
	}
	k, err := kubelet.New(cfg, clients)
	if err != nil {
		return err
	}
	return k.Run(ctx)
}

// heartbeatPatience leaves time for three more attempts before the Lease expires.
func heartbeatPatience(lease time.Duration) time.Duration {
	return max(time.Second, min(cmp.Or(lease, 40*time.Second)/4, 10*time.Second))
}

// background runs an optional part of the kubelet.
func background(ctx context.Context, name string, run func(context.Context) error) {
	if err := run(ctx); err != nil {
		klog.ErrorS(err, "A part of the kubelet ended", "part", name)
	}
}
