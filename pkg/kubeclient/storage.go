package kubeclient

import (
	"context"
	"errors"
	"fmt"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// Claim reads a PersistentVolumeClaim. The Node authorizer permits this to the node of a pod that uses the claim. For a moment, Claim
// treats a refusal as the authorizer's delay.
func (o *Objects) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return patient(ctx, o, func() (*v1.PersistentVolumeClaim, error) {
		return o.client.PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// PersistentVolume reads a PersistentVolume, with the rule of Claim for the claim that is bound to it.
func (o *Objects) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return patient(ctx, o, func() (*v1.PersistentVolume, error) {
		return o.client.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	})
}

// patient repeats a read while the API server refuses it and may not know of the pod yet.
func patient[T any](ctx context.Context, o *Objects, read func() (T, error)) (T, error) {
	for started := o.clock.Now(); ; o.pause(ctx, 4*soon) {
		obj, err := read()
		if !apierrors.IsForbidden(err) || ctx.Err() != nil || o.clock.Since(started) >= grace {
			return obj, err
		}
	}
}

// RuntimeHandler implements pod.Objects. A RuntimeClass's handler never changes, so the last one seen is used while the API server is
// unavailable.
func (o *Objects) RuntimeHandler(ctx context.Context, name string) (string, error) {
	class, err := o.client.RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.handlers[name] = class.Handler
		return class.Handler, nil
	}
	var answered apierrors.APIStatus
	if handler, known := o.handlers[name]; known && !errors.As(err, &answered) {
		return handler, nil
	}
	return "", err
}

// TrustBundles lists ClusterTrustBundles: the named one or, if name is "", those of signer that match the label selector.
func (o *Objects) TrustBundles(ctx context.Context, name, signer, selector string) ([]certificatesv1beta1.ClusterTrustBundle, error) {
	options := metav1.ListOptions{LabelSelector: selector}
	if name != "" {
		options.FieldSelector = only(name).FieldSelector
	} else {
		options.FieldSelector = fields.OneTermEqualSelector("spec.signerName", signer).String()
	}
	list, err := o.client.ClusterTrustBundles().List(ctx, options)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the API server does not serve ClusterTrustBundles (certificates.k8s.io/v1beta1): %w", err)
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
