package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/winkube/winkube/pkg/clientset"
)

// api is the part of an API server that a node may use for its Node and Lease. If the Node authorizer or NodeRestriction would refuse a
// request, it refuses too, and the test fails.
type api struct {
	t    *testing.T
	name string

	mu      sync.Mutex
	node    *v1.Node
	lease   *coordinationv1.Lease
	version int
	fail    []int // status codes of the next responses
	log     []string
	patches []string
	told    chan string // each successful request
}

func newAPI(t *testing.T, name string) (*api, clientset.Interface) {
	a := &api{t: t, name: name, told: make(chan string, 1000)}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return a, client
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	what := r.Method + " " + r.URL.Path
	if len(a.fail) > 0 {
		code := a.fail[0]
		a.fail = a.fail[1:]
		refuse(w, code, "failing on purpose")
		a.log = append(a.log, fmt.Sprintf("%s -> %d", what, code))
		return
	}
	answer, code, reason := a.handle(what, r.URL.Path, body)
	a.log = append(a.log, fmt.Sprintf("%s -> %d", what, code))
	if answer == nil {
		if code == http.StatusForbidden {
			a.t.Errorf("%s: a node may not: %s", what, reason)
		}
		refuse(w, code, reason)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		a.t.Error(err)
	}
	a.told <- what
}

func refuse(w http.ResponseWriter, code int, message string) {
	reasons := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonAlreadyExists}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Reason: reasons[code], Message: message, Code: int32(code)})
}

func (a *api) handle(what, path string, body []byte) (answer any, code int, reason string) {
	own := "/api/v1/nodes/" + a.name
	leases := "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	switch what {
	case "POST /api/v1/nodes":
		return a.createNode(body)
	case "GET " + own:
		if a.node == nil {
			return nil, 404, "no such node"
		}
		return a.node, 200, ""
	case "PATCH " + own + "/status":
		return a.patchNode(body)
	case "GET " + leases + "/" + a.name:
		if a.lease == nil {
			return nil, 404, "no such lease"
		}
		return a.lease, 200, ""
	case "POST " + leases, "PUT " + leases + "/" + a.name:
		lease := &coordinationv1.Lease{}
		if err := json.Unmarshal(body, lease); err != nil || lease.Name != a.name {
			return nil, 403, fmt.Sprintf("lease %q: %v", lease.Name, err)
		}
		a.lease = lease
		return lease, 200, ""
	}
	return nil, 403, "not among the requests of a node"
}

func (a *api) createNode(body []byte) (any, int, string) {
	node := &v1.Node{}
	if err := json.Unmarshal(body, node); err != nil || node.Name != a.name {
		return nil, 403, fmt.Sprintf("node %q: %v", node.Name, err)
	}
	if a.node != nil {
		return nil, 409, "exists"
	}
	if bad := forbidden(node.Labels, nil); bad != "" {
		return nil, 403, bad
	}
	node.UID = types.UID(fmt.Sprintf("uid-%d", a.version))
	a.put(node)
	return node, 201, ""
}

func (a *api) patchNode(body []byte) (any, int, string) {
	if a.node == nil {
		return nil, 404, "no such node"
	}
	old, err := json.Marshal(a.node)
	if err != nil {
		return nil, 500, err.Error()
	}
	merged, err := strategicpatch.StrategicMergePatch(old, body, v1.Node{})
	if err != nil {
		return nil, 400, err.Error()
	}
	node := &v1.Node{}
	if err := json.Unmarshal(merged, node); err != nil {
		return nil, 400, err.Error()
	}
	if !reflect.DeepEqual(node.Spec, a.node.Spec) {
		return nil, 403, "a change of the spec"
	}
	if bad := forbidden(node.Labels, a.node.Labels); bad != "" {
		return nil, 403, bad
	}
	a.patches = append(a.patches, string(body))
	a.put(node)
	return node, 200, ""
}

// put stores node; a.mu is held.
func (a *api) put(node *v1.Node) {
	a.version++
	node.ResourceVersion = strconv.Itoa(a.version)
	a.node = node
}

// edit changes the Node, as another client would.
func (a *api) edit(change func(*v1.Node)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.node.DeepCopy()
	change(node)
	a.put(node)
}

func (a *api) requests() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.log, "\n")
}

// Node implements Watch.
func (a *api) Node() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.node == nil {
		return nil
	}
	return a.node.DeepCopy()
}

// forbidden names a label that NodeRestriction forbids a node to change.
func forbidden(labels, old map[string]string) string {
	for name, value := range labels {
		domain, _, _ := strings.Cut(name, "/")
		kubernetes := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
		if old[name] != value && kubernetes && !kubeletapis.IsKubeletLabel(name) {
			return "label " + name
		}
	}
	return ""
}
