package differential

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/test/apiserver"
)

// api is an API server whose objects the test sets.
type api struct {
	*apiserver.Server
	URL string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	server, err := apiserver.New(apiserver.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return &api{server, apiserver.Start(t, server)}
}

// apply adds or replaces the objects in a YAML text, or deletes those with "deleted: true" at the top level.
func (a *api) apply(t *testing.T, text string) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		object, deleted, err := read(document)
		if err == nil && deleted {
			err = a.Remove(object)
		} else if err == nil {
			err = a.Set(object)
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
	}
}

// read decodes one document.
func read(document string) (object runtime.Object, deleted bool, err error) {
	data, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		return nil, false, err
	}
	var mark struct {
		metav1.TypeMeta
		Deleted bool `json:"deleted"`
	}
	if err := yaml.Unmarshal(data, &mark); err != nil {
		return nil, false, err
	}
	object, _, err = scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	return object, mark.Deleted, err
}

// TestApply: a document adds, replaces or deletes an object.
func TestApply(t *testing.T) {
	a := newAPI(t)
	const path = "/api/v1/namespaces/default/services/web"
	for _, c := range []struct{ more, ip string }{{"spec: {clusterIP: 10.96.0.1}", "10.96.0.1"}, {"spec: {clusterIP: 10.96.0.2}", "10.96.0.2"}, {"deleted: true", ""}} {
		a.apply(t, "apiVersion: v1\nkind: Node\nmetadata: {name: win1}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n"+c.more+"\n")
		service, there := a.Get(path).(*v1.Service)
		if there != (c.ip != "") || there && service.Spec.ClusterIP != c.ip {
			t.Errorf("after %q: there %v, %+v", c.more, there, service)
		}
	}
	if a.Get("/api/v1/nodes/win1") == nil {
		t.Error("the other document was not applied")
	}
}
