package clientset_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/clientset/clientsettest"
)

// wire records requests, and answers them with 404.
type wire struct {
	mu   sync.Mutex
	said strings.Builder
}

// ServeHTTP implements http.Handler.
func (w *wire) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.said, "%s %s accept %q type %q body %q %v\n", r.Method, r.URL, r.Header["Accept"], r.Header["Content-Type"], body, err)
	http.NotFound(out, r)
}

func (w *wire) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.said.Reset()
	return w.said.String()
}

// verbs calls all methods of a Resource. example has a name.
func verbs[T, L runtime.Object](resource clientset.Resource[T, L], example T) func(context.Context) {
	return func(ctx context.Context) {
		seconds := int64(7)
		_, _ = resource.Create(ctx, example, metav1.CreateOptions{FieldManager: "x"})
		_, _ = resource.Get(ctx, "a", metav1.GetOptions{ResourceVersion: "0"})
		_, _ = resource.Update(ctx, example, metav1.UpdateOptions{})
		_, _ = resource.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"x":1}`), metav1.PatchOptions{}, "status")
		_, _ = resource.Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		_ = resource.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &seconds, Preconditions: metav1.NewUIDPreconditions("u")})
		read(resource)(ctx)
	}
}

func read[L runtime.Object](reader clientset.Reader[L]) func(context.Context) {
	return func(ctx context.Context) {
		seconds := int64(7)
		_, _ = reader.List(ctx, metav1.ListOptions{LabelSelector: "a=b,!c", Limit: 3})
		_, _ = reader.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=a", ResourceVersion: "5", AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	}
}

// calls are all requests that an Interface can send.
func calls(c clientset.Interface) map[string]func(context.Context) {
	named := metav1.ObjectMeta{Name: "a", Namespace: "ns"}
	return map[string]func(context.Context){
		"CertificateSigningRequests": verbs(c.CertificateSigningRequests(), &certificatesv1.CertificateSigningRequest{ObjectMeta: named}),
		"ClusterTrustBundles":        read(c.ClusterTrustBundles()),
		"ConfigMaps":                 verbs(c.ConfigMaps("ns"), &v1.ConfigMap{ObjectMeta: named}),
		"CSIDrivers":                 verbs(c.CSIDrivers(), &storagev1.CSIDriver{ObjectMeta: named}),
		"CSINodes":                   verbs(c.CSINodes(), &storagev1.CSINode{ObjectMeta: named}),
		"EndpointSlices":             verbs(c.EndpointSlices("ns"), &discoveryv1.EndpointSlice{ObjectMeta: named}),
		"Events":                     verbs(c.Events("ns"), &v1.Event{ObjectMeta: named}),
		"Leases":                     verbs(c.Leases("ns"), &coordinationv1.Lease{ObjectMeta: named}),
		"Nodes":                      verbs(c.Nodes(), &v1.Node{ObjectMeta: named}),
		"PersistentVolumeClaims":     verbs(c.PersistentVolumeClaims("ns"), &v1.PersistentVolumeClaim{ObjectMeta: named}),
		"PersistentVolumes":          verbs(c.PersistentVolumes(), &v1.PersistentVolume{ObjectMeta: named}),
		"Pods":                       verbs(c.Pods("ns"), &v1.Pod{ObjectMeta: named}),
		"Pods of all namespaces":     read(c.Pods("")),
		"RuntimeClasses":             verbs(c.RuntimeClasses(), &nodev1.RuntimeClass{ObjectMeta: named}),
		"Secrets":                    verbs(c.Secrets("ns"), &v1.Secret{ObjectMeta: named, Data: map[string][]byte{"x": {1}}}),
		"SelfSubjectAccessReviews": func(ctx context.Context) {
			_, _ = c.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
		},
		"ServiceAccounts": verbs(c.ServiceAccounts("ns"), &v1.ServiceAccount{ObjectMeta: named}),
		"CreateToken": func(ctx context.Context) {
			_, _ = c.ServiceAccounts("ns").CreateToken(ctx, "a", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"x"}}}, metav1.CreateOptions{})
		},
		"ServiceCIDRs": verbs(c.ServiceCIDRs(), &networkingv1.ServiceCIDR{ObjectMeta: named}),
		"Services":     verbs(c.Services("ns"), &v1.Service{ObjectMeta: named}),
		"SubjectAccessReviews": func(ctx context.Context) {
			_, _ = c.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
		},
		"TokenReviews": func(ctx context.Context) {
			_, _ = c.TokenReviews().Create(ctx, &authenticationv1.TokenReview{}, metav1.CreateOptions{})
		},
		"VolumeAttachments": verbs(c.VolumeAttachments(), &storagev1.VolumeAttachment{ObjectMeta: named}),
		"ServerVersion":     func(context.Context) { _, _ = c.ServerVersion() },
	}
}

// TestSameRequests: each request is the same, to the byte, as that of client-go's own clientset.
func TestSameRequests(t *testing.T) {
	recorded := &wire{}
	server := httptest.NewServer(recorded)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{
		ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"}}
	ours, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	reference := calls(clientsettest.Adapter{Of: theirs})
	for name, call := range calls(ours) {
		call(t.Context())
		got := recorded.take()
		reference[name](t.Context())
		if want := recorded.take(); got != want || got == "" {
			t.Errorf("%s: got\n%s\nclient-go sends\n%s", name, got, want)
		}
	}
}

// TestAnswers: what an API server answers is decoded: objects, lists, watches, errors.
func TestAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			_, _ = io.WriteString(w, `{"gitVersion": "v1.36.3"}`)
		case r.URL.Query().Get("watch") != "":
			_, _ = io.WriteString(w, `{"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}}`)
		case r.URL.Path == "/api/v1/namespaces/ns/pods":
			_, _ = io.WriteString(w, `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "a"}}]}`)
		case r.URL.Path == "/apis/storage.k8s.io/v1/csinodes/n1":
			_, _ = io.WriteString(w, `{"kind": "CSINode", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": "n1"}}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "not yours"}`)
		}
	}))
	t.Cleanup(server.Close)
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if client.Server().Host != strings.TrimPrefix(server.URL, "http://") {
		t.Errorf("the server is %s", client.Server())
	}
	if info, err := client.ServerVersion(); err != nil || info.GitVersion != "v1.36.3" {
		t.Errorf("version %v, %v", info, err)
	}
	if list, err := client.Pods("ns").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" || list.ResourceVersion != "9" {
		t.Errorf("pods %v, %v", list, err)
	}
	if node, err := client.CSINodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || node.Name != "n1" {
		t.Errorf("CSINode %v, %v", node, err)
	}
	w, err := client.Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if event := <-w.ResultChan(); event.Type != "ADDED" || event.Object.(*v1.Pod).Name != "a" {
		t.Errorf("the watch delivers %v", event)
	}
	if _, err := client.Secrets("ns").Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a refusal is %v", err)
	}
}

// TestLimitWithoutBurst: no request would pass such a limit.
func TestLimitWithoutBurst(t *testing.T) {
	if _, err := clientset.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1", QPS: 5}); err == nil || !strings.Contains(err.Error(), "Burst 0, must be above 0 with QPS 5") {
		t.Error(err)
	}
}
