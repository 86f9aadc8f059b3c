package clientset

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// pointer is *V, an object of the API.
type pointer[V any] interface {
	*V
	metav1.Object
	runtime.Object
}

// list is *V, a list of objects of the API.
type list[V any] interface {
	*V
	runtime.Object
}

// creator implements Creator. Fields are set once.
type creator[V any, T pointer[V]] struct {
	client    rest.Interface
	resource  string // plural, lower case
	namespace string // "" selects all namespaces, or the kind has none
}

// resource implements Resource.
type resource[V, W any, T pointer[V], L list[W]] struct {
	creator[V, T]
}

// creatorOf returns a creator of one kind. The compiler finds T.
func creatorOf[V any, T pointer[V]](c *Client, group schema.GroupVersion, name, namespace string) *creator[V, T] {
	return &creator[V, T]{client: c.groups[group], resource: name, namespace: namespace}
}

// kind returns the objects of one kind. The compiler finds T and L.
func kind[V, W any, T pointer[V], L list[W]](c *Client, group schema.GroupVersion, name, namespace string) *resource[V, W, T, L] {
	return &resource[V, W, T, L]{*creatorOf[V, T](c, group, name, namespace)}
}

// at completes a request for the object of that name, or for all ("").
func (c *creator[V, T]) at(request *rest.Request, name string, subresources ...string) *rest.Request {
	request = request.NamespaceIfScoped(c.namespace, c.namespace != "").Resource(c.resource)
	if name != "" {
		request = request.Name(name)
	}
	return request.SubResource(subresources...)
}

// Create implements Creator.
func (c *creator[V, T]) Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error) {
	result := T(new(V))
	err := c.at(c.client.Post(), "").VersionedParams(&options, parameters).Body(object).Do(ctx).Into(result)
	return result, err
}

// Get implements Resource.
func (r *resource[V, W, T, L]) Get(ctx context.Context, name string, options metav1.GetOptions) (T, error) {
	result := T(new(V))
	err := r.at(r.client.Get(), name).VersionedParams(&options, parameters).Do(ctx).Into(result)
	return result, err
}

// List implements Resource.
func (r *resource[V, W, T, L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	result := L(new(W))
	err := r.at(r.client.Get(), "").VersionedParams(&options, parameters).Timeout(timeout(options)).Do(ctx).Into(result)
	return result, err
}

// Watch implements Resource.
func (r *resource[V, W, T, L]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return r.at(r.client.Get(), "").VersionedParams(&options, parameters).Timeout(timeout(options)).Watch(ctx)
}

// timeout is how long the server may take for a list, or keeps a watch; 0: as long as it likes.
func timeout(options metav1.ListOptions) time.Duration {
	if options.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*options.TimeoutSeconds) * time.Second
}

// Update implements Resource.
func (r *resource[V, W, T, L]) Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error) {
	result := T(new(V))
	err := r.at(r.client.Put(), object.GetName()).VersionedParams(&options, parameters).Body(object).Do(ctx).Into(result)
	return result, err
}

// Patch implements Resource.
func (r *resource[V, W, T, L]) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error) {
	result := T(new(V))
	err := r.at(r.client.Patch(kind), name, subresources...).VersionedParams(&options, parameters).Body(data).Do(ctx).Into(result)
	return result, err
}

// Delete implements Resource.
func (r *resource[V, W, T, L]) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return r.at(r.client.Delete(), name).Body(&options).Do(ctx).Error()
}

// serviceAccounts implements ServiceAccounts.
type serviceAccounts struct {
	*resource[v1.ServiceAccount, v1.ServiceAccountList, *v1.ServiceAccount, *v1.ServiceAccountList]
}

// CreateToken implements ServiceAccounts.
func (s *serviceAccounts) CreateToken(ctx context.Context, name string, request *authenticationv1.TokenRequest, options metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	result := &authenticationv1.TokenRequest{}
	err := s.at(s.client.Post(), name, "token").VersionedParams(&options, parameters).Body(request).Do(ctx).Into(result)
	return result, err
}
