package kubelet

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/images"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/podspec"
)

// Images is the configuration of who may pull and use which image.
type Images struct {
	// ProvidersConfig is a CredentialProviderConfig file or a directory of them, ProvidersDir has the programs; "": no plugins.
	ProvidersConfig, ProvidersDir string
	Policy                        credential.Policy
	Allowed                       []string // for credential.NeverVerifyAllowed
}

// newPuller creates the puller of images, with the plugins and records that decide who may use them.
func newPuller(cfg Config, client clientset.Interface, objects *kubeclient.Objects, engine *docker.Engine, records *credential.Records, events record.EventRecorder) (*start.Puller, error) {
	parts := start.PullerParts{Images: engine.Images, Records: records, Objects: objects, Recorder: events, Clock: clock.RealClock{}}
	if cfg.Images.ProvidersConfig != "" {
		plugins, err := credential.New(cfg.Images.ProvidersConfig, cfg.Images.ProvidersDir, credential.Parts{
			ServiceAccount: func(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
				return client.ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
			},
			Token: objects.Token, Runner: command.NewPrivate, Clock: clock.RealClock{},
		})
		if err != nil {
			return nil, err
		}
		parts.Plugins = plugins
	}
	return start.NewPuller(cfg.Resolver, parts), nil
}

// imageVolumes adapts engine and puller to package volume.
type imageVolumes struct {
	*images.Store
	puller *start.Puller
}

func (i imageVolumes) Ensure(ctx context.Context, p *v1.Pod, v *v1.Volume) (pod.Image, error) {
	return i.puller.EnsureImage(ctx, p, v)
}

// Images lists the local images for the Node, and removes the pull records of removed images.
func (e nodeEngine) Images(ctx context.Context) ([]v1.ContainerImage, error) {
	began := time.Now()
	list, changed, err := e.engine.Images.ListImages(ctx)
	if err != nil || !changed {
		return list.Named, err
	}
	if err := e.records.Prune(list.IDs, began); err != nil {
		klog.ErrorS(err, "Cannot remove the records of removed images")
	}
	return list.Named, nil
}

// Runtime describes the engine for the Node.
func (e nodeEngine) Runtime(ctx context.Context) (node.Runtime, error) {
	info, err := e.engine.Client.Current(ctx)
	e.faults.look(info, err)
	handlers := info.Runtimes
	if e.platform.OS == "windows" {
		handlers = podspec.IsolationHandlers()
	}
	return node.Runtime{Version: info.Version, Handlers: handlers, RecursiveReadOnly: e.engine.Client.RecursiveReadOnly()}, err
}
