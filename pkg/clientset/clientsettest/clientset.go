package clientsettest

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/winkube/winkube/pkg/clientset"
)

// Clientset is client-go's fake API server, with its reactors and its tracker.
type Clientset struct {
	*fake.Clientset
	Adapter
}

// Adapter is a clientset of client-go as a clientset.Interface.
type Adapter struct{ Of kubernetes.Interface }

var _ clientset.Interface = Adapter{}

// CertificateSigningRequests implements clientset.Interface.
func (a Adapter) CertificateSigningRequests() clientset.CertificateSigningRequests {
	return a.Of.CertificatesV1().CertificateSigningRequests()
}

// ClusterTrustBundles implements clientset.Interface.
func (a Adapter) ClusterTrustBundles() clientset.Reader[*certificatesv1beta1.ClusterTrustBundleList] {
	return a.Of.CertificatesV1beta1().ClusterTrustBundles()
}

// ConfigMaps implements clientset.Interface.
func (a Adapter) ConfigMaps(namespace string) clientset.ConfigMaps {
	return a.Of.CoreV1().ConfigMaps(namespace)
}

// CSIDrivers implements clientset.Interface.
func (a Adapter) CSIDrivers() clientset.CSIDrivers {
	return a.Of.StorageV1().CSIDrivers()
}

// CSINodes implements clientset.Interface.
func (a Adapter) CSINodes() clientset.CSINodes {
	return a.Of.StorageV1().CSINodes()
}

// EndpointSlices implements clientset.Interface.
func (a Adapter) EndpointSlices(namespace string) clientset.EndpointSlices {
	return a.Of.DiscoveryV1().EndpointSlices(namespace)
}

// Events implements clientset.Interface.
func (a Adapter) Events(namespace string) clientset.Events {
	return a.Of.CoreV1().Events(namespace)
}

// Leases implements clientset.Interface.
func (a Adapter) Leases(namespace string) clientset.Leases {
	return a.Of.CoordinationV1().Leases(namespace)
}

// Nodes implements clientset.Interface.
func (a Adapter) Nodes() clientset.Nodes {
	return a.Of.CoreV1().Nodes()
}

// PersistentVolumeClaims implements clientset.Interface.
func (a Adapter) PersistentVolumeClaims(namespace string) clientset.PersistentVolumeClaims {
	return a.Of.CoreV1().PersistentVolumeClaims(namespace)
}

// PersistentVolumes implements clientset.Interface.
func (a Adapter) PersistentVolumes() clientset.PersistentVolumes {
	return a.Of.CoreV1().PersistentVolumes()
}

// Pods implements clientset.Interface.
func (a Adapter) Pods(namespace string) clientset.Pods {
	return a.Of.CoreV1().Pods(namespace)
}

// RuntimeClasses implements clientset.Interface.
func (a Adapter) RuntimeClasses() clientset.RuntimeClasses {
	return a.Of.NodeV1().RuntimeClasses()
}

// Secrets implements clientset.Interface.
func (a Adapter) Secrets(namespace string) clientset.Secrets {
	return a.Of.CoreV1().Secrets(namespace)
}

// SelfSubjectAccessReviews implements clientset.Interface.
func (a Adapter) SelfSubjectAccessReviews() clientset.Creator[*authorizationv1.SelfSubjectAccessReview] {
	return a.Of.AuthorizationV1().SelfSubjectAccessReviews()
}

// ServiceAccounts implements clientset.Interface.
func (a Adapter) ServiceAccounts(namespace string) clientset.ServiceAccounts {
	return a.Of.CoreV1().ServiceAccounts(namespace)
}

// ServiceCIDRs implements clientset.Interface.
func (a Adapter) ServiceCIDRs() clientset.ServiceCIDRs {
	return a.Of.NetworkingV1().ServiceCIDRs()
}

// Services implements clientset.Interface.
func (a Adapter) Services(namespace string) clientset.Services {
	return a.Of.CoreV1().Services(namespace)
}

// SubjectAccessReviews implements clientset.Interface.
func (a Adapter) SubjectAccessReviews() clientset.Creator[*authorizationv1.SubjectAccessReview] {
	return a.Of.AuthorizationV1().SubjectAccessReviews()
}

// TokenReviews implements clientset.Interface.
func (a Adapter) TokenReviews() clientset.Creator[*authenticationv1.TokenReview] {
	return a.Of.AuthenticationV1().TokenReviews()
}

// VolumeAttachments implements clientset.Interface.
func (a Adapter) VolumeAttachments() clientset.VolumeAttachments {
	return a.Of.StorageV1().VolumeAttachments()
}

// ServerVersion implements clientset.Interface.
func (a Adapter) ServerVersion() (*version.Info, error) { return a.Of.Discovery().ServerVersion() }
