package kubeclient

import (
	"crypto/rand"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
)

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const good = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: SERVER}}]
users: [{name: u, user: {token: secret-token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
	https := strings.Replace(good, "SERVER", "https://10.0.0.1:6443", 1)
	for name, c := range map[string]struct {
		options Options
		host    string
		problem string // parts of the error, separated by |
	}{
		"kubeconfig":     {Options{Kubeconfig: file("good", https)}, "https://10.0.0.1:6443", ""},
		"plain":          {Options{Kubeconfig: file("plain", strings.Replace(good, "SERVER", "http://10.0.0.1:8080", 1))}, "http://10.0.0.1:8080", ""},
		"host and port":  {Options{Server: "10.0.0.1:8080"}, "http://10.0.0.1:8080", ""},
		"url":            {Options{Server: "https://api.example:6443"}, "https://api.example:6443", ""},
		"several":        {Options{Server: "http://a:8080, http://b:8080"}, "http://a:8080", ""},
		"both":           {Options{Server: "a:1", Kubeconfig: "b"}, "", "a:1|only one"},
		"none":           {Options{}, "", "no API server"},
		"missing file":   {Options{Kubeconfig: filepath.Join(dir, "none")}, "", "none|cannot read kubeconfig"},
		"empty file":     {Options{Kubeconfig: file("empty", "")}, "", "empty"},
		"not yaml":       {Options{Kubeconfig: file("bad", ":\n\t- x")}, "", "bad"},
		"no such user":   {Options{Kubeconfig: file("user", strings.Replace(https, "user: u}", "user: w}", 1))}, "", "w|user"},
		"no certificate": {Options{Kubeconfig: file("cert", strings.Replace(https, "token: secret-token", "client-certificate: /none.crt, client-key: /none.key", 1))}, "", "cert|none.crt"},
		"bad certificate": {Options{Kubeconfig: file("ca", strings.Replace(https, "server:", "certificate-authority: "+filepath.ToSlash(file("ca.crt", "x"))+", server:", 1))},
			"", "kubeconfig|certificate"},
		"bad server": {Options{Server: "ftp://x"}, "", `"ftp://x"|must be`},
		"bad port":   {Options{Server: "http://x:y"}, "", `"http://x:y"|must be`},
		"directory":  {Options{Kubeconfig: dir}, "", "kubeconfig"},
	} {
		config, err := Config(c.options)
		if c.problem == "" {
			if err != nil || config.Host != c.host {
				t.Errorf("%s: got %v, %v", name, config, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for part := range strings.SplitSeq(c.problem, "|") {
			if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret-token") {
				t.Errorf("%s: %v; want %q in one line", name, err, part)
			}
		}
	}
}

func TestConfigReachesAServer(t *testing.T) {
	agents := make(chan string, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents <- r.UserAgent()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.3"}`))
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config")
	text := "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: '" + server.URL + "', certificate-authority: '" + filepath.ToSlash(ca) +
		"'}}], contexts: [{name: x, context: {cluster: c}}], current-context: x}"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := Config(Options{Kubeconfig: path, UserAgent: "kubelet/v1.36.3"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil || version.GitVersion != "v1.36.3" {
		t.Errorf("got %v, %v", version, err)
	}
	if agent := <-agents; agent != "kubelet/v1.36.3" {
		t.Errorf("user agent %q", agent)
	}
}

func TestEvents(t *testing.T) {
	client := clientsettest.NewClientset()
	sent := make(chan *v1.Event, 1)
	client.PrependReactor("create", "events", func(a kubetesting.Action) (bool, runtime.Object, error) {
		e := a.(kubetesting.CreateAction).GetObject().(*v1.Event)
		sent <- e
		return true, e, nil
	})
	recorder, stop := Events(client, "kubelet", "n1", EventLimit{})
	defer stop()
	recorder.Eventf(testPod("1", v1.PodStatus{}), v1.EventTypeWarning, "Failed", "cannot pull %s", "x")
	select {
	case e := <-sent:
		if e.Source.Component != "kubelet" || e.Source.Host != "n1" || e.Reason != "Failed" || e.InvolvedObject.UID != "uid-1" || e.Namespace != "ns" {
			t.Errorf("sent %+v", e)
		}
	case <-time.After(time.Minute):
		t.Error("no event")
	}
}

// TestEventLimit: a burst is sent at the rate of the limit, and nothing after the end.
func TestEventLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, sent := time.Now(), []string{}
		client := clientsettest.NewClientset()
		client.PrependReactor("create", "events", func(a kubetesting.Action) (bool, runtime.Object, error) {
			sent = append(sent, time.Since(begin).String())
			return true, a.(kubetesting.CreateAction).GetObject(), nil
		})
		recorder, stop := Events(client, "kubelet", "n1", EventLimit{QPS: 0.5, Burst: 2})
		for i := range 5 {
			recorder.Eventf(testPod(strconv.Itoa(i), v1.PodStatus{}), v1.EventTypeWarning, "Failed", "pod %d", i)
		}
		time.Sleep(5 * time.Second)
		stop()
		synctest.Wait()
		if got := strings.Join(sent, " "); got != "0s 0s 2s 4s" {
			t.Errorf("sent after %s", got)
		}
	})
}

// TestEventsInOneTick: two Events about one object within one tick of a coarse clock are both kept, and repetitions of the second update
// the second.
func TestEventsInOneTick(t *testing.T) {
	api := clientsettest.NewClientset()
	sink := &uniqueSink{EventSink: &eventSink{t.Context(), api}}
	event := func(reason string) *v1.Event {
		return &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.17a0"}, Reason: reason}
	}
	names := map[string]bool{}
	for _, reason := range []string{"Pulled", "Failed", "BackOff"} {
		created, err := sink.Create(event(reason))
		if err != nil {
			t.Fatal(err)
		}
		names[created.Name] = true
	}
	if len(names) != 3 || !names["p.17a0"] {
		t.Errorf("names %v", names)
	}
	other := event("Pulled")
	other.Namespace = "other"
	if created, err := sink.Create(other); err != nil || created.Name != "p.17a0" {
		t.Errorf("in another namespace: %v %v", created, err)
	}
	for range 2 * len(sink.recent) { // an old name may occur again: the API server has it
		if _, err := sink.Create(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", GenerateName: "q", Name: "q" + rand.Text()}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sink.Create(event("Late")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("an Event of long ago: %v", err)
	}
}
