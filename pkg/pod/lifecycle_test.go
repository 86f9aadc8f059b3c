package pod

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
)

func flagUpdate() bool { return flag.Lookup("update").Value.String() == "true" }

func TestHTTPHook(t *testing.T) {
	var seen []string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.URL.RequestURI()+" "+r.Host+" "+r.Header.Get("X-A")+" "+r.Header.Get("User-Agent"))
		w.WriteHeader(http.StatusTeapot) // whatever is answered will do
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	port := func(s *httptest.Server) int {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(u.Port())
		return n
	}
	recorder := record.NewFakeRecorder(10)
	hook := hookRun{
		pod: &v1.Pod{}, ips: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, parts: &Parts{Events: recorder},
		container: &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port(plain))}}},
	}
	get := func(action v1.HTTPGetAction) error {
		return hook.run(context.Background(), &v1.LifecycleHandler{HTTPGet: &action})
	}
	headers := []v1.HTTPHeader{{Name: "Host", Value: "example.com"}, {Name: "X-A", Value: "b"}}
	if err := get(v1.HTTPGetAction{Path: "/p?q=1", Port: intstr.FromString("web"), HTTPHeaders: headers}); err != nil {
		t.Error(err)
	}
	if err := get(v1.HTTPGetAction{Scheme: "HTTPS", Port: intstr.FromInt(port(secure))}); err != nil {
		t.Error(err)
	}
	if err := get(v1.HTTPGetAction{Scheme: "HTTPS", Port: intstr.FromInt(port(plain))}); err != nil {
		t.Error(err)
	}
	if len(seen) != 3 || seen[0] != "/p?q=1 example.com b kube-lifecycle/1.36" {
		t.Errorf("seen: %q", seen)
	}
	if e := <-recorder.Events; !strings.Contains(e, "LifecycleHTTPFallback") {
		t.Errorf("event: %s", e)
	}
	if err := get(v1.HTTPGetAction{Port: intstr.FromString("none")}); err == nil || !strings.Contains(err.Error(), `port "none"`) {
		t.Errorf("unknown port: %v", err)
	}
	hook.ips = nil
	if err := get(v1.HTTPGetAction{Port: intstr.FromInt(1)}); err == nil {
		t.Error("a pod without address")
	}
}

func TestSleepHookEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	hook := hookRun{pod: &v1.Pod{}, container: &v1.Container{Name: "c"}}
	if err := hook.run(ctx, &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 3600}}); err == nil {
		t.Error("slept on")
	}
	if err := hook.run(ctx, &v1.LifecycleHandler{}); err == nil {
		t.Error("ran nothing")
	}
}
