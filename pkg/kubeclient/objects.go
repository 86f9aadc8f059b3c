package kubeclient

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Objects reads the API objects that this node's pods refer to; it implements pod.Objects.
type Objects struct {
}

// NewObjects makes an Objects for the node of that name. Nothing is asked for before Run.
func NewObjects(client kubernetes.Interface, nodeName string) *Objects { return &Objects{} }

// OnNode has handler called with each new state of our Node, in order and never twice at a time; it must not block. nil: the Node was
// deleted. Only before Run.
func (o *Objects) OnNode(handler func(*v1.Node)) {}

// Run keeps the watches until ctx ends. It is called once.
func (o *Objects) Run(ctx context.Context) error { return nil }

func (o *Objects) Register(pod *v1.Pod)     {}
func (o *Objects) Unregister(uid types.UID) {}
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return nil, nil
}
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return nil, nil
}
func (o *Objects) Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return nil, nil
}
func (o *Objects) Services(namespace string) ([]*v1.Service, error) { return nil, nil }
func (o *Objects) Node() *v1.Node                                   { return nil }
func (o *Objects) Changed() <-chan types.UID                        { return nil }

// StatusWriter brings pod statuses to the API server; it implements pod.StatusWriter.
type StatusWriter struct{}

// NewStatusWriter makes a StatusWriter.
func NewStatusWriter(client kubernetes.Interface) *StatusWriter { return &StatusWriter{} }

func (w *StatusWriter) Write(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error { return nil }
func (w *StatusWriter) Delete(ctx context.Context, pod *v1.Pod) error                     { return nil }
func (w *StatusWriter) CreateMirror(ctx context.Context, mirror *v1.Pod) error            { return nil }
