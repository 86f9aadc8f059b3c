package containers

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// TestDeliver: a pod is delivered once for several changes, in the order of the first changes, and again after later ones.
func TestDeliver(t *testing.T) {
	queue, out := workqueue.NewTyped[types.UID](), make(chan types.UID)
	ctx, cancel := context.WithCancel(t.Context())
	for _, uid := range []types.UID{"a", "b", "a", "", "b", "c"} {
		queue.Add(uid)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		deliver(ctx, queue, out)
	}()
	var got []types.UID
	for range 4 {
		got = append(got, <-out)
	}
	queue.Add("a")
	if got = append(got, <-out); fmt.Sprint(got) != "[a b  c a]" {
		t.Errorf("%q", got)
	}
	queue.Add("d") // it is never received
	cancel()
	queue.ShutDown()
	<-done
}
