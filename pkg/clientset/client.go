package clientset

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// groups are the API groups of the kinds in Interface.
var groups = []struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
}{
	{v1.SchemeGroupVersion, v1.AddToScheme},
	{authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme},
	{authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme},
	{certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme},
	{certificatesv1beta1.SchemeGroupVersion, certificatesv1beta1.AddToScheme},
	{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme},
	{discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme},
	{networkingv1.SchemeGroupVersion, networkingv1.AddToScheme},
	{nodev1.SchemeGroupVersion, nodev1.AddToScheme},
	{storagev1.SchemeGroupVersion, storagev1.AddToScheme},
}

// Scheme has the types of the kinds in Interface, and all others of their groups.
var Scheme = newScheme()

var parameters = runtime.NewParameterCodec(Scheme)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, group := range groups {
		if err := group.add(scheme); err != nil {
			panic(err) // two types of one name
		}
	}
	return scheme
}

// Client is a connection to an API server.
type Client struct {
	groups map[schema.GroupVersion]rest.Interface
}

var _ Interface = (*Client)(nil)

// NewForConfig returns a Client for config, see rest.HTTPClientFor. It sends no request.
func NewForConfig(config *rest.Config) (*Client, error) {
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return NewForConfigAndClient(config, transport)
}

// NewForConfigAndClient returns a Client that sends its requests through transport. config.QPS and Burst limit all of its requests together.
func NewForConfigAndClient(config *rest.Config, transport *http.Client) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if config.RateLimiter == nil && config.QPS > 0 {
		if config.Burst <= 0 {
			return nil, fmt.Errorf("limit of requests: Burst %d, must be above 0 with QPS %g", config.Burst, config.QPS)
		}
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	config.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(Scheme, serializer.NewCodecFactory(Scheme)).WithoutConversion()
	client := &Client{groups: map[schema.GroupVersion]rest.Interface{}}
	for _, group := range groups {
		own := rest.CopyConfig(config)
		own.GroupVersion, own.APIPath = &group.version, "/apis"
		if group.version.Group == "" {
			own.APIPath = "/api"
		}
		c, err := rest.RESTClientForConfigAndClient(own, transport)
		if err != nil {
			return nil, err
		}
		client.groups[group.version] = c
	}
	return client, nil
}

// ServerVersion implements Interface.
func (c *Client) ServerVersion() (*version.Info, error) {
	data, err := c.groups[v1.SchemeGroupVersion].Get().AbsPath("/version").Do(context.Background()).Raw()
	if err != nil {
		return nil, err
	}
	info := &version.Info{}
	if err := json.Unmarshal(data, info); err != nil {
		return nil, fmt.Errorf("cannot read the API server's version %q: %w", data, err)
	}
	return info, nil
}

// Server is the URL that the Client sends its requests to.
func (c *Client) Server() *url.URL { return c.groups[v1.SchemeGroupVersion].Get().URL() }

// CertificateSigningRequests implements Interface.
func (c *Client) CertificateSigningRequests() CertificateSigningRequests {
	return kind[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](c, certificatesv1.SchemeGroupVersion, "certificatesigningrequests", "")
}

// ClusterTrustBundles implements Interface.
func (c *Client) ClusterTrustBundles() Reader[*certificatesv1beta1.ClusterTrustBundleList] {
	return kind[certificatesv1beta1.ClusterTrustBundle, certificatesv1beta1.ClusterTrustBundleList](c, certificatesv1beta1.SchemeGroupVersion, "clustertrustbundles", "")
}

// ConfigMaps implements Interface.
func (c *Client) ConfigMaps(namespace string) ConfigMaps {
	return kind[v1.ConfigMap, v1.ConfigMapList](c, v1.SchemeGroupVersion, "configmaps", namespace)
}

// CSIDrivers implements Interface.
func (c *Client) CSIDrivers() CSIDrivers {
	return kind[storagev1.CSIDriver, storagev1.CSIDriverList](c, storagev1.SchemeGroupVersion, "csidrivers", "")
}

// CSINodes implements Interface.
func (c *Client) CSINodes() CSINodes {
	return kind[storagev1.CSINode, storagev1.CSINodeList](c, storagev1.SchemeGroupVersion, "csinodes", "")
}

// EndpointSlices implements Interface.
func (c *Client) EndpointSlices(namespace string) EndpointSlices {
	return kind[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](c, discoveryv1.SchemeGroupVersion, "endpointslices", namespace)
}

// Events implements Interface.
func (c *Client) Events(namespace string) Events {
	return kind[v1.Event, v1.EventList](c, v1.SchemeGroupVersion, "events", namespace)
}

// Leases implements Interface.
func (c *Client) Leases(namespace string) Leases {
	return kind[coordinationv1.Lease, coordinationv1.LeaseList](c, coordinationv1.SchemeGroupVersion, "leases", namespace)
}

// Nodes implements Interface.
func (c *Client) Nodes() Nodes {
	return kind[v1.Node, v1.NodeList](c, v1.SchemeGroupVersion, "nodes", "")
}

// PersistentVolumeClaims implements Interface.
func (c *Client) PersistentVolumeClaims(namespace string) PersistentVolumeClaims {
	return kind[v1.PersistentVolumeClaim, v1.PersistentVolumeClaimList](c, v1.SchemeGroupVersion, "persistentvolumeclaims", namespace)
}

// PersistentVolumes implements Interface.
func (c *Client) PersistentVolumes() PersistentVolumes {
	return kind[v1.PersistentVolume, v1.PersistentVolumeList](c, v1.SchemeGroupVersion, "persistentvolumes", "")
}

// Pods implements Interface.
func (c *Client) Pods(namespace string) Pods {
	return kind[v1.Pod, v1.PodList](c, v1.SchemeGroupVersion, "pods", namespace)
}

// RuntimeClasses implements Interface.
func (c *Client) RuntimeClasses() RuntimeClasses {
	return kind[nodev1.RuntimeClass, nodev1.RuntimeClassList](c, nodev1.SchemeGroupVersion, "runtimeclasses", "")
}

// Secrets implements Interface.
func (c *Client) Secrets(namespace string) Secrets {
	return kind[v1.Secret, v1.SecretList](c, v1.SchemeGroupVersion, "secrets", namespace)
}

// SelfSubjectAccessReviews implements Interface.
func (c *Client) SelfSubjectAccessReviews() Creator[*authorizationv1.SelfSubjectAccessReview] {
	return creatorOf[authorizationv1.SelfSubjectAccessReview](c, authorizationv1.SchemeGroupVersion, "selfsubjectaccessreviews", "")
}

// ServiceAccounts implements Interface.
func (c *Client) ServiceAccounts(namespace string) ServiceAccounts {
	return &serviceAccounts{kind[v1.ServiceAccount, v1.ServiceAccountList](c, v1.SchemeGroupVersion, "serviceaccounts", namespace)}
}

// ServiceCIDRs implements Interface.
func (c *Client) ServiceCIDRs() ServiceCIDRs {
	return kind[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](c, networkingv1.SchemeGroupVersion, "servicecidrs", "")
}

// Services implements Interface.
func (c *Client) Services(namespace string) Services {
	return kind[v1.Service, v1.ServiceList](c, v1.SchemeGroupVersion, "services", namespace)
}

// SubjectAccessReviews implements Interface.
func (c *Client) SubjectAccessReviews() Creator[*authorizationv1.SubjectAccessReview] {
	return creatorOf[authorizationv1.SubjectAccessReview](c, authorizationv1.SchemeGroupVersion, "subjectaccessreviews", "")
}

// TokenReviews implements Interface.
func (c *Client) TokenReviews() Creator[*authenticationv1.TokenReview] {
	return creatorOf[authenticationv1.TokenReview](c, authenticationv1.SchemeGroupVersion, "tokenreviews", "")
}

// VolumeAttachments implements Interface.
func (c *Client) VolumeAttachments() VolumeAttachments {
	return kind[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](c, storagev1.SchemeGroupVersion, "volumeattachments", "")
}
