package relaytest

import (
	"os"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// NoLeak: after connections in every state and the end of their front, the numbers of goroutines and files are as
// before.
func NoLeak(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	dead := ClosedPort(t)
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), dead)) // what a plane starts only once
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 5 {
		drop := Route("drop", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1))
		drop.Drop = true
		h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoints[v1.ProtocolTCP]...), drop,
			Route("y", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), h.Endpoints[v1.ProtocolUDP]...), Route("z", proxy.ClusterIP, v1.ProtocolTCP, h.Front(2), dead))
		for range 10 {
			_ = Meet(t, v1.ProtocolTCP, h.Front(2), false) // ends with a reset
			conn := DialFront(t, h.Front(0))
			if _, err := conn.Write([]byte("hello\n")); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if subject.dropped() == "silence" { // the connection is held
				defer DialFront(t, h.Front(1)).Close()
			}
			if _, err := Ask(v1.ProtocolTCP, h.Front(0)); err != nil {
				t.Fatal(err)
			}
			if _, err := Ask(v1.ProtocolUDP, h.Front(0)); err != nil {
				t.Fatal(err)
			}
		}
		h.MustSync(t)
	}
	// Only the clients' own sockets are left, 20 in each round; the servers' ends close by themselves.
	Eventually(t, "goroutines and files go", func() bool {
		runtime.GC() // package net keeps pipes of splice(2) until the collector finds them, in two rounds
		return runtime.NumGoroutine() <= goroutines+1 && openFiles(t) <= files+5*20
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not on Windows, where goroutines are counted too
	}
	return len(entries)
}

// EndpointIsFront: endpoints that lead back to the relay fail immediately instead of filling it with connections to
// itself.
func EndpointIsFront(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	h.MustSync(t, Route("a", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Front(1)), Route("b", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), h.Front(0)),
		Route("c", proxy.ClusterIP, v1.ProtocolUDP, h.Front(2), h.Front(2)))
	files := openFiles(t)
	for n := range 2 {
		if got := Meet(t, v1.ProtocolTCP, h.Front(n), false); got != "reset" {
			t.Errorf("front %d: meets %s", n, got)
		}
	}
	if got := Meet(t, v1.ProtocolUDP, h.Front(2), true); got != "silence" {
		t.Errorf("packets: meets %s", got)
	}
	Eventually(t, "files go", func() bool { return openFiles(t) <= files })
}
