// Package kinds has the kinds of volumes of this agent, one in a file, behind volume.Kind, and the table that names them.
package kinds

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/atomic"
	"github.com/winkube/winkube/pkg/volume/grow"
)

// Objects is what volumes read from the API server; pod.Objects has it.
type Objects interface {
	volume.Claims
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Node() *v1.Node
	// TrustBundles lists the ClusterTrustBundle called name, or when name is "" those of signer that selector chooses.
	TrustBundles(ctx context.Context, name, signer, selector string) ([]certificatesv1beta1.ClusterTrustBundle, error)
}

// Parts are what the kinds work with. All but Growth must be set.
type Parts struct {
	Objects Objects
	Images  Images
	Clock   clock.PassiveClock
	Run     command.Runner
	// Prepared is called with how long it took to make a volume of that plugin ready, or why it could not be.
	Prepared func(plugin string, took time.Duration, err error)
	// Growth is for claims of local volumes; without Objects they are not followed.
	Growth grow.Parts
}

// New makes the Manager of a host with all its kinds, and those that are made elsewhere.
func New(host volume.Host, parts Parts, others ...volume.Kind) (*volume.Manager, error) {
	return volume.New(host, volume.Parts{Claims: parts.Objects, Kinds: append(All(host, parts), others...), Clock: parts.Clock, Prepared: parts.Prepared})
}

// All is the table of the kinds that a host has. A new kind gets a line here.
func All(host volume.Host, parts Parts) []volume.Kind {
	writer := atomic.NewWriter(host.Platform, parts.Clock)
	maps, secret, downward := configMaps{api: parts.Objects}, secrets{api: parts.Objects}, downwardAPI{node: parts.Objects}
	several := &projected{configMaps: maps, secrets: secret, downward: downward, trust: trustBundles{api: parts.Objects},
		tokens: &tokens{api: parts.Objects, access: host.Access, clock: parts.Clock, pods: map[types.UID]map[tokenKey]token{}}}
	all := []volume.Kind{
		&emptyDir{host: &host, node: parts.Objects},
		&payload{source: maps, host: &host, writer: writer, name: "kubernetes.io/configmap"},
		&payload{source: secret, host: &host, writer: writer, name: "kubernetes.io/secret", memory: true},
		&payload{source: downward, host: &host, writer: writer, name: "kubernetes.io/downward-api"},
		&payload{source: several, host: &host, writer: writer, name: "kubernetes.io/projected", memory: true},
		hostPath{platform: host.Platform},
		newLocal(&host, parts.Growth),
	}
	if host.Platform.OS != "windows" {
		all = append(all, newImages(host, parts.Images), newNFS(&host, parts.Run))
	}
	return all
}
