// Package clientsettest has client-go's fake API server as a clientset.Interface, and helps tests that run informers on it.
package clientsettest

import (
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// NewClientset returns client-go's fake API server with objects. Its watches deliver copies: the fake's own replay the stored objects
// themselves (testing/fixture.go of client-go 0.36), which informers change, so that the race detector finds them.
func NewClientset(objects ...runtime.Object) *Clientset {
	api := fake.NewClientset(objects...)
	client := &Clientset{api, Adapter{api}}
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := watchCopies(client, action)
		return true, w, err
	})
	return client
}

func watchCopies(client *Clientset, action clienttesting.Action) (watch.Interface, error) {
	var options metav1.ListOptions
	if a, ok := action.(clienttesting.WatchActionImpl); ok {
		options = a.ListOptions
	}
	w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		e.Object = e.Object.DeepCopyObject()
		return e, true
	}), nil
}

// OnceWatched returns a function that waits until client has an open watch of each of resources ("nodes").
//
// The fake API server has a gap: it never reports an object that is deleted between an informer's list and its watch. A test that deletes
// must wait first. Call OnceWatched before the informers start; the wait fails the test after a minute.
func OnceWatched(t testing.TB, client *Clientset, resources ...string) (wait func()) {
	open := map[string]chan struct{}{}
	for _, resource := range resources {
		opened, once := make(chan struct{}), sync.Once{}
		open[resource] = opened
		client.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
			w, err := watchCopies(client, action)
			if err == nil {
				once.Do(func() { close(opened) })
			}
			return true, w, err
		})
	}
	return func() {
		t.Helper()
		deadline := time.After(time.Minute)
		for resource, opened := range open {
			select {
			case <-opened:
			case <-deadline:
				t.Fatalf("no watch of %s within a minute", resource)
			}
		}
	}
}
