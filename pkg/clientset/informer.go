package clientset

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// ListerWatcher lets an informer read what reader has. limit, which may be nil, sets selectors. client is what reader comes from: a fake one
// says that it cannot stream lists.
func ListerWatcher[L runtime.Object](client Interface, reader Reader[L], limit func(*metav1.ListOptions)) cache.ListerWatcher {
	if limit == nil {
		limit = func(*metav1.ListOptions) {}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			limit(&options)
			return reader.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			limit(&options)
			return reader.Watch(ctx, options)
		},
	}, client)
}
