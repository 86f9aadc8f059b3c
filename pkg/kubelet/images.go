package kubelet

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/pod"
)

// Images is who may pull and use which image.
type Images struct {
	// ProvidersConfig is a CredentialProviderConfig file or a directory of them, ProvidersDir has the programs; "": no plugins.
	ProvidersConfig, ProvidersDir string
	Policy                        credential.Policy
	Allowed                       []string // of credential.NeverVerifyAllowed
}

// resolver makes the Resolver and what decides who may pull and use which image.
func (k *Kubelet) resolver(cfg Config, client kubernetes.Interface, volumes pod.Volumes) (r *pod.Resolver, err error) {
	if k.records, err = credential.NewRecords(cfg.RootDir, cfg.Images.Policy, cfg.Images.Allowed); err != nil {
		return nil, err
	}
	parts := pod.ResolverParts{Images: k.engine.Images, Records: k.records, Volumes: volumes, Network: k.network, Objects: k.objects,
		Recorder: k.recorder, Clock: clock.RealClock{}}
	if cfg.Images.ProvidersConfig != "" {
		parts.Plugins, err = credential.New(cfg.Images.ProvidersConfig, cfg.Images.ProvidersDir, credential.Parts{
			ServiceAccount: func(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
				return client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
			},
			Token: k.objects.Token, Runner: command.NewPrivate, Clock: clock.RealClock{},
		})
		if err != nil {
			return nil, err
		}
	}
	return pod.NewResolver(cfg.Resolver, parts), nil
}

// images lists the present images for the Node, and forgets who may use those that are gone.
func (k *Kubelet) images(ctx context.Context) ([]v1.ContainerImage, error) {
	began := time.Now()
	list, changed, err := k.engine.Images.ListImages(ctx)
	if err != nil || !changed {
		return list.Named, err
	}
	if err := k.records.Prune(list.IDs, began); err != nil {
		klog.ErrorS(err, "Cannot remove the records of images that are gone")
	}
	return list.Named, nil
}
