package source

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

var update = flag.Bool("update", false, "rewrite the golden files")

const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: dns}
spec:
  containers:
  - name: c
    image: coredns
    ports: [{containerPort: 53}]
    livenessProbe: {httpGet: {port: 8080}}
    resources: {limits: {cpu: 100m, memory: 70Mi}}
  volumes: [{name: v, hostPath: {path: /etc}}]
`

func TestStaticPodIsWhatTheAPIServerWouldMakeOfIt(t *testing.T) {
	pods, err := staticPods([]byte(manifest), "file", "/manifests/dns.yaml", "Node1", noon)
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(pods[0])
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "static.golden", string(got))
	again, _ := staticPods([]byte(manifest), "file", "/manifests/dns.yaml", "Node1", noon.Add(time.Hour))
	if again[0].UID != pods[0].UID {
		t.Error("the UID differs from one reading to the next")
	}
	for _, other := range [][2]string{{"/manifests/other.yaml", "Node1"}, {"/manifests/dns.yaml", "node2"}} {
		if o, _ := staticPods([]byte(manifest), "file", other[0], other[1], noon); o[0].UID == pods[0].UID {
			t.Errorf("the UID does not depend on %v", other)
		}
	}
	if o, _ := staticPods([]byte(strings.Replace(manifest, "coredns", "coredns:2", 1)), "file", "/manifests/dns.yaml", "Node1", noon); o[0].UID == pods[0].UID {
		t.Error("the UID does not depend on the contents")
	}
}

// golden compares got with a file of testdata, or updates the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("%s: got:\n%s\nwant:\n%s", name, got, want)
	}
}

func TestBadManifests(t *testing.T) {
	p := func(spec string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: " + spec + "}"
	}
	var out strings.Builder
	for _, c := range []string{
		"kind: [", "kind: Pod", "{apiVersion: v1, kind: Service}", "{apiVersion: v1, kind: Pod}", "{apiVersion: v1, kind: Pod, metadata: {name: p}, specs: {}}",
		p("{}"), p("{restartPolicy: Sometimes, containers: [{name: c, image: i}]}"),
		p("{containers: [{name: C_1, image: ''}, {name: b, image: i, ports: [{containerPort: 70000}]}, {name: b, image: i}]}"),
		p("{containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]}"),
		p("{containers: [{name: c, image: i, resources: {limits: {cpu: 1}, requests: {cpu: 2, memory: 1}}}]}"),
		p("{containers: [{name: c, image: i, livenessProbe: {successThreshold: 2}}]}"),
		"{apiVersion: v1, kind: Pod, metadata: {name: p, uid: ../x}, spec: {containers: [{name: c, image: i}]}}",
		p("{serviceAccountName: s, containers: [{name: c, image: i}]}"),
		p("{containers: [{name: c, image: i, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}"),
		p("{containers: [{name: c, image: i, envFrom: [{configMapRef: {name: s}}]}]}"),
		p("{containers: [{name: c, image: i}], volumes: [{name: v, secret: {secretName: s}}]}"),
		p("{containers: [{name: c, image: i}], volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]}"),
		p("{containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: s}}]}"),
	} {
		_, err := staticPods([]byte(c), "file", "m.yaml", "node1", noon)
		if err == nil {
			t.Errorf("accepted: %s", c)
		}
		fmt.Fprintf(&out, "%s\n  %v\n", c, strings.ReplaceAll(fmt.Sprint(err), "\n", "\n  "))
	}
	golden(t, "manifests.golden", out.String())
}

func FuzzStaticPods(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := staticPods(data, "http", "http://x", "n", noon)
		if err != nil && len(pods) > 0 {
			t.Error("some of a bad manifest")
		}
		for _, p := range pods {
			if p.UID == "" || p.Name == "" || p.Spec.RestartPolicy == "" {
				t.Errorf("unfinished: %v", p.ObjectMeta)
			}
		}
	})
}

// next returns the first Update for which ok holds.
func next(t *testing.T, updates <-chan pod.Update, what string, ok func(pod.Update) bool) pod.Update {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case u := <-updates:
			if ok(u) {
				return u
			}
		case <-timeout:
			t.Fatalf("no update: %s", what)
		}
	}
}

func sourceNames(u pod.Update) []string {
	var names []string
	for _, d := range u.Set {
		names = append(names, "+"+d.Pod.Name)
	}
	for _, p := range u.Gone {
		names = append(names, "-"+p.Name)
	}
	slices.Sort(names)
	return names
}

func run(t *testing.T, s *Source) <-chan pod.Update {
	ctx, cancel := context.WithCancel(context.Background())
	updates, ended := make(chan pod.Update), make(chan error, 1)
	go func() { ended <- s.Run(ctx, updates) }()
	t.Cleanup(func() { cancel(); <-ended })
	return updates
}

func TestManifestDirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("dns.yaml", manifest)
	write(".hidden.yaml", strings.Replace(manifest, "dns", "hidden", 1))
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	updates := run(t, New(Config{NodeName: "n", Path: dir}))
	u := next(t, updates, "first list", func(pod.Update) bool { return true })
	if got := sourceNames(u); !u.Synced || !slices.Equal(got, []string{"+dns-n"}) {
		t.Fatalf("first: %v synced %t", got, u.Synced)
	}
	first := u.Set[0].Pod.UID
	write("web.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	next(t, updates, "a new file", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"+web-n"}) })
	// A bad version changes nothing; the next good one replaces the pod. The next file shows that the bad one was read.
	write("dns.yaml", "kind: [")
	write("two.yaml", strings.Replace(manifest, "dns", "two", 1))
	next(t, updates, "a bad file", func(u pod.Update) bool {
		got := sourceNames(u)
		if slices.Contains(got, "-dns-n") {
			t.Fatal("the last good version went")
		}
		return slices.Equal(got, []string{"+two-n"})
	})
	write("dns.yaml", strings.Replace(manifest, "coredns", "coredns:2", 1))
	u = next(t, updates, "a changed file", func(u pod.Update) bool { return len(sourceNames(u)) > 0 })
	if got := sourceNames(u); !slices.Equal(got, []string{"+dns-n", "-dns-n"}) || u.Set[0].Pod.UID == first {
		t.Fatalf("changed: %v", got)
	}
	if err := os.Remove(filepath.Join(dir, "web.json")); err != nil {
		t.Fatal(err)
	}
	next(t, updates, "a removed file", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"-web-n"}) })
}

func TestManifestURL(t *testing.T) {
	var body atomic.Value
	var conditional atomic.Int32
	body.Store(`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "secret" {
			t.Error("the header is missing")
		}
		tag := fmt.Sprintf("%q", fmt.Sprint(len(body.Load().(string))))
		if r.Header.Get("If-None-Match") == tag {
			conditional.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", tag)
		fmt.Fprint(w, body.Load())
	}))
	defer server.Close()
	updates := run(t, New(Config{NodeName: "n", URL: server.URL, URLPeriod: 20 * time.Millisecond, URLHeader: map[string][]string{"x-token": {"secret"}}}))
	next(t, updates, "first list", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"+a-n"}) })
	body.Store("nonsense")
	next(t, updates, "nonsense", func(u pod.Update) bool {
		if len(sourceNames(u)) != 0 {
			t.Fatalf("changed by nonsense: %v", sourceNames(u))
		}
		return true
	})
	body.Store(manifest)
	next(t, updates, "another list", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"+dns-n", "-a-n"}) })
}

func apiPod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}, Spec: v1.PodSpec{NodeName: "n"}}
}

func TestAPISource(t *testing.T) {
	client := clientsettest.NewClientset(apiPod("a", "1"))
	updates := run(t, New(Config{NodeName: "n", Client: client}))
	u := next(t, updates, "first list", func(pod.Update) bool { return true })
	if got := sourceNames(u); !slices.Equal(got, []string{"+a"}) || !u.Synced {
		t.Fatalf("first: %v", got)
	}
	pods := client.Pods("default")
	ctx := context.Background()
	liar := apiPod("b", "2")
	liar.Annotations = map[string]string{podspec.AnnotationSource: "file"}
	if _, err := pods.Create(ctx, liar, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	u = next(t, updates, "a new pod", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"+b"}) })
	if podspec.IsStatic(u.Set[0].Pod) {
		t.Error("an API pod passes for a static one")
	}
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next(t, updates, "a deleted pod", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"-a"}) })
}

// TestStaticPodsDoNotWait: static pods run before the Node exists; the API server's pods wait for it.
func TestStaticPodsDoNotWait(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dns.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	registered := make(chan struct{})
	client := clientsettest.NewClientset(apiPod("a", "1"))
	updates := run(t, New(Config{NodeName: "n", Client: client, Path: dir, Registered: func() <-chan struct{} { return registered }}))
	u := next(t, updates, "the static pod", func(pod.Update) bool { return true })
	if got := sourceNames(u); !slices.Equal(got, []string{"+dns-n"}) || u.Synced || len(client.Actions()) > 0 {
		t.Fatalf("first: %v, synced %v, requests %v", got, u.Synced, client.Actions())
	}
	close(registered)
	next(t, updates, "the API's pod", func(u pod.Update) bool { return slices.Equal(sourceNames(u), []string{"+a"}) && u.Synced })
}

// TestMirrors calls Source.merge through the life of a static pod and its mirror pod.
func TestMirrors(t *testing.T) {
	s := New(Config{})
	s.pending = map[string]bool{"api": true, "file": true}
	static := apiPod("dns-n", "static")
	static.Annotations = map[string]string{podspec.AnnotationSource: "file", podspec.AnnotationHash: "static"}
	mirror := apiPod("dns-n", "mirror")
	mirror.Generation, mirror.Annotations = 1, map[string]string{v1.MirrorPodAnnotationKey: "static"}
	stray := apiPod("old-n", "stray")
	stray.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "old"}

	u := s.merge(batch{source: "file", full: true, set: []*v1.Pod{static}})
	if len(u.Set) != 1 || u.Set[0].Mirror != nil || u.Synced {
		t.Fatalf("static first: %+v", u)
	}
	u = s.merge(batch{source: "api", full: true, set: []*v1.Pod{mirror, stray}})
	if len(u.Set) != 1 || u.Set[0].Pod.UID != "static" || u.Set[0].Mirror != mirror || u.Set[0].Pod.Generation != 1 || !u.Synced {
		t.Fatalf("mirror seen: %+v", u)
	}
	if len(u.Strays) != 1 || u.Strays[0] != stray {
		t.Fatalf("strays: %v", u.Strays)
	}
	u = s.merge(batch{source: "api", gone: []*v1.Pod{mirror}})
	if len(u.Set) != 1 || u.Set[0].Mirror != nil || len(u.Gone) != 0 {
		t.Fatalf("mirror gone: %+v", u)
	}
	s.merge(batch{source: "api", set: []*v1.Pod{mirror}})
	u = s.merge(batch{source: "file", full: true})
	if len(u.Gone) != 1 || u.Gone[0].UID != "static" || len(u.Strays) != 1 || u.Strays[0] != mirror {
		t.Fatalf("static gone: %+v", u)
	}
}

// TestOwnUID: a manifest with a metadata.uid keeps it. A change of the manifest is still detected: the old pod ends and the new one starts.
func TestOwnUID(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	owning := strings.Replace(manifest, "{name: dns}", "{name: dns, uid: my-own}", 1)
	write("dns.yaml", owning)
	write("other.yaml", strings.Replace(owning, "name: dns", "name: other", 1)) // the same UID again
	updates := run(t, New(Config{NodeName: "n", Path: dir, PathPeriod: 20 * time.Millisecond}))
	first := next(t, updates, "the first list", func(pod.Update) bool { return true })
	if got := sourceNames(first); !slices.Equal(got, []string{"+dns-n"}) || first.Set[0].Pod.UID != "my-own" || podspec.MirrorHash(first.Set[0].Pod) == "my-own" {
		t.Fatalf("first: %v, %+v", got, first.Set)
	}
	write("dns.yaml", "# nothing but a comment\n"+owning)
	next(t, updates, "another reading", func(u pod.Update) bool {
		if len(sourceNames(u)) > 0 {
			t.Fatalf("changed by nothing: %v", sourceNames(u))
		}
		return true
	})
	write("dns.yaml", strings.Replace(owning, "coredns", "coredns:2", 1))
	u := next(t, updates, "another image", func(u pod.Update) bool { return len(u.Set)+len(u.Gone) > 0 })
	if len(u.Set) != 1 || len(u.Gone) != 1 || u.Set[0].Pod.UID != "my-own" || u.Gone[0].UID != "my-own" || u.Gone[0].Spec.Containers[0].Image != "coredns" ||
		u.Set[0].Pod.Spec.Containers[0].Image != "coredns:2" || podspec.MirrorHash(u.Set[0].Pod) == podspec.MirrorHash(u.Gone[0]) {
		t.Errorf("changed: %+v", u)
	}
	write("dns.yaml", strings.Replace(owning, "name: dns", "name: renamed", 1))
	u = next(t, updates, "another name", func(u pod.Update) bool { return len(u.Set)+len(u.Gone) > 0 })
	if len(u.Set) != 1 || len(u.Gone) != 1 || u.Set[0].Pod.Name != "renamed-n" || u.Gone[0].Name != "dns-n" {
		t.Errorf("renamed: %+v", u)
	}
}
