package programs

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/winkube/winkube/test/apiserver"
)

// api is an API server for one node.
type api struct {
	*apiserver.Server
	URL string
}

// newAPI serves objects until the test ends. Its watches send the existing objects and nothing more, unless a test enables
// updates (Silent).
func newAPI(t *testing.T, objects ...runtime.Object) *api {
	t.Helper()
	server, err := apiserver.New(apiserver.JSON)
	if err == nil {
		err = server.Set(objects...)
	}
	if err != nil {
		t.Fatal(err)
	}
	server.Silent = true
	return &api{server, apiserver.Start(t, server)}
}

// set adds or replaces an object.
func (a *api) set(t *testing.T, object runtime.Object) {
	t.Helper()
	if err := a.Set(object); err != nil {
		t.Fatal(err)
	}
}

// remove deletes the object at path.
func (a *api) remove(t *testing.T, path string) {
	t.Helper()
	if err := a.Delete(path); err != nil {
		t.Fatal(err)
	}
}
