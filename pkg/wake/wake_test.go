package wake_test

import (
	"sync"
	"testing"

	"github.com/winkube/winkube/pkg/wake"
)

func TestSignal(t *testing.T) {
	signal := wake.New()
	pending := func() bool {
		select {
		case <-signal:
			return true
		default:
			return false
		}
	}
	if pending() {
		t.Error("a new signal is pending")
	}
	signal.Send()
	signal.Send()
	if !pending() {
		t.Error("a sent signal is not pending")
	}
	if pending() {
		t.Error("two signals before the receiver looked count as two")
	}
	wake.Signal(nil).Send() // does not block
}

func TestBroadcast(t *testing.T) {
	var news wake.Broadcast
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	news.Send() // no goroutine waits
	first := news.Next()
	if closed(first) {
		t.Error("news from before Next count")
	}
	if second := news.Next(); first != second {
		t.Error("two waits without news in between have different channels")
	}
	news.Send()
	news.Send()
	if !closed(first) {
		t.Error("a wait did not end with the news")
	}
	if closed(news.Next()) {
		t.Error("a new wait ends with old news")
	}
}

// TestBroadcastWakesAll: each goroutine that waits gets the news.
func TestBroadcastWakesAll(t *testing.T) {
	var news wake.Broadcast
	var woken sync.WaitGroup
	for range 10 {
		next := news.Next()
		woken.Go(func() { <-next })
	}
	news.Send()
	woken.Wait()
}
