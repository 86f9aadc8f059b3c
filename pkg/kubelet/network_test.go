package kubelet

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/stats"
)

func TestProbeServer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	probe := probeServer(client.Server())
	for _, from := range []netip.Addr{{}, netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00::1")} { // ignored for a server on this host
		if err := probe(t.Context(), from); err != nil {
			t.Errorf("from %s: %v", from, err)
		}
	}
	server.Close()
	if err := probe(t.Context(), netip.Addr{}); err == nil || !strings.Contains(err.Error(), "the API server does not answer a packet from the pods' gateway") {
		t.Errorf("%v", err)
	}
	far, err := clientset.NewForConfig(&rest.Config{Host: "http://192.0.2.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := probeServer(far.Server())(ctx, netip.MustParseAddr("192.0.2.9")); err == nil {
		t.Error("an address that this host does not have sent a packet")
	} else if _, ok := err.(net.Error); ok {
		t.Error("the error has no message")
	}
}

// A server that answers and a port that refuses count as reached. An address that this host cannot send from does not.
func TestProbePods(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	to := netip.MustParsePrefix("127.0.0.0/8") // its first address is the server's
	if err := probePods(server.Listener.Addr().String())(t.Context(), netip.MustParseAddr("127.0.0.1"), to); err != nil {
		t.Errorf("a server: %v", err)
	}
	if err := probePods("0.0.0.0:1")(t.Context(), netip.Addr{}, to); err != nil {
		t.Errorf("a refusal: %v", err)
	}
	if err := probePods("")(t.Context(), netip.MustParseAddr("192.0.2.9"), to); err == nil {
		t.Error("an address that this host does not have sent a packet")
	}
}

func TestAnnotator(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, 4096)
		n, _ := r.Body.Read(body)
		got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body[:n])
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"kind":"Node","apiVersion":"v1"}`))
	}))
	defer server.Close()
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	value := "vxlan"
	if err := annotator(client, "node1")(t.Context(), map[string]*string{"a/type": &value, "a/gone": nil}); err != nil {
		t.Fatal(err)
	}
	want := `PATCH /api/v1/nodes/node1 application/merge-patch+json {"metadata":{"annotations":{"a/gone":null,"a/type":"vxlan"}}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// connected counts notifications to the pod network.
type connected struct{ joined, kicked int }

func (c *connected) Joined() { c.joined++ }
func (c *connected) Kick()   { c.kicked++ }

// changing is a runtime whose steps all succeed and that reports changes.
type changing struct {
	pod.Runtime
	changes chan types.UID
}

func (changing) Apply(context.Context, *v1.Pod, pod.Step) error { return nil }
func (c changing) Changes(context.Context) <-chan types.UID     { return c.changes }

func TestRuntime(t *testing.T) {
	told := &connected{}
	runtime := newRuntime(changing{changes: make(chan types.UID, 3)}, told, stats.NewCounters())
	for _, action := range []pod.Action{pod.CreateSandbox, pod.StartContainer, pod.StopSandbox} {
		if err := runtime.Apply(t.Context(), &v1.Pod{}, pod.Step{Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	changes := runtime.Runtime.(changing).changes
	changes <- "one"
	changes <- "" // after a gap: the engine was unavailable
	changes <- "two"
	close(changes)
	var got []types.UID
	for uid := range runtime.Changes(t.Context()) {
		got = append(got, uid)
	}
	runtime.wait()
	if !slices.Equal(got, []types.UID{"one", "", "two"}) || told.joined != 1 || told.kicked != 1 {
		t.Errorf("%q, told %+v", got, told)
	}
}
