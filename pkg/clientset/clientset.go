// Package clientset has typed access to the kinds of API object that the agents use, through client-go's REST client.
//
//	caller -> Client.Pods(namespace) -> Resource -> rest.Interface of the kind's API group -> API server
//
// client-go's clientset has every kind of the API, which was a fifth of the kubelet and a quarter of the proxy
// (docs/design/adr/0037-a-clientset-of-used-kinds.md). test/repo keeps it out.
package clientset

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
)

// Interface is what the agents ask of the API server. A namespace of "" selects all namespaces, for lists and watches. Client implements it;
// package clientsettest has a fake.
type Interface interface {
	CertificateSigningRequests() CertificateSigningRequests
	ClusterTrustBundles() Reader[*certificatesv1beta1.ClusterTrustBundleList]
	ConfigMaps(namespace string) ConfigMaps
	CSIDrivers() CSIDrivers
	CSINodes() CSINodes
	EndpointSlices(namespace string) EndpointSlices
	Events(namespace string) Events
	Leases(namespace string) Leases
	Nodes() Nodes
	PersistentVolumeClaims(namespace string) PersistentVolumeClaims
	PersistentVolumes() PersistentVolumes
	Pods(namespace string) Pods
	RuntimeClasses() RuntimeClasses
	Secrets(namespace string) Secrets
	SelfSubjectAccessReviews() Creator[*authorizationv1.SelfSubjectAccessReview]
	ServiceAccounts(namespace string) ServiceAccounts
	ServiceCIDRs() ServiceCIDRs
	Services(namespace string) Services
	SubjectAccessReviews() Creator[*authorizationv1.SubjectAccessReview]
	TokenReviews() Creator[*authenticationv1.TokenReview]
	VolumeAttachments() VolumeAttachments

	// ServerVersion reads the version of the API server.
	ServerVersion() (*version.Info, error)
}

// Creator creates objects. Errors are those of k8s.io/apimachinery/pkg/api/errors.
type Creator[T runtime.Object] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
}

// Resource has the objects of one kind, and L is its list. Errors are those of k8s.io/apimachinery/pkg/api/errors. client-go's typed clients
// implement it.
type Resource[T, L runtime.Object] interface {
	Creator[T]
	Reader[L]
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// Reader is the part of a Resource that informers use. The caller stops a watch.
type Reader[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Resources of an Interface.
type (
	CertificateSigningRequests = Resource[*certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequestList]
	ConfigMaps                 = Resource[*v1.ConfigMap, *v1.ConfigMapList]
	CSIDrivers                 = Resource[*storagev1.CSIDriver, *storagev1.CSIDriverList]
	CSINodes                   = Resource[*storagev1.CSINode, *storagev1.CSINodeList]
	EndpointSlices             = Resource[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]
	Events                     = Resource[*v1.Event, *v1.EventList]
	Leases                     = Resource[*coordinationv1.Lease, *coordinationv1.LeaseList]
	Nodes                      = Resource[*v1.Node, *v1.NodeList]
	PersistentVolumeClaims     = Resource[*v1.PersistentVolumeClaim, *v1.PersistentVolumeClaimList]
	PersistentVolumes          = Resource[*v1.PersistentVolume, *v1.PersistentVolumeList]
	Pods                       = Resource[*v1.Pod, *v1.PodList]
	RuntimeClasses             = Resource[*nodev1.RuntimeClass, *nodev1.RuntimeClassList]
	Secrets                    = Resource[*v1.Secret, *v1.SecretList]
	ServiceCIDRs               = Resource[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList]
	Services                   = Resource[*v1.Service, *v1.ServiceList]
	VolumeAttachments          = Resource[*storagev1.VolumeAttachment, *storagev1.VolumeAttachmentList]
)

// ServiceAccounts are the ServiceAccounts of a namespace, and their tokens.
type ServiceAccounts interface {
	Resource[*v1.ServiceAccount, *v1.ServiceAccountList]
	// CreateToken requests a token for the named ServiceAccount (TokenRequest API).
	CreateToken(ctx context.Context, name string, request *authenticationv1.TokenRequest, options metav1.CreateOptions) (*authenticationv1.TokenRequest, error)
}
