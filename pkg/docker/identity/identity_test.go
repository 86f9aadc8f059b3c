package identity

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// FuzzOwned: whatever labels say, only containers with the name that this agent would give are accepted, and that name can be part of a path.
func FuzzOwned(f *testing.F) {
	f.Add(TypeContainer, "0a1b-2c", "web-0", "shop", "app", "3", "k8s_app_web-0_shop_0a1b-2c_3")
	f.Add(TypeSandbox, "0a1b", "web-0", "shop", SandboxName, "0", "/k8s_POD_web-0_shop_0a1b_0_17a2")
	f.Add(TypeContainer, "victim", "web-0", "shop", "app", "999", "happy_turing")
	f.Add(TypeHolder, "victim", "web-0", "shop", "app", "999", "k8s_image_n_0123456789ab")
	f.Add(TypeContainer, "../x", "web-0", "shop", "app", "-1", "k8s_app_web-0_shop_../x_-1")
	f.Fuzz(func(t *testing.T, kind, uid, name, namespace, c, attempt, engineName string) {
		labels := map[string]string{LabelNode: "n", LabelType: kind, LabelPodUID: uid, LabelPodName: name, LabelPodNamespace: namespace, LabelContainerName: c, LabelRestartCount: attempt}
		o, err := Node("n").Own([]string{engineName}, labels)
		if err != nil {
			return
		}
		if kind != TypeContainer && kind != TypeSandbox || (kind == TypeSandbox) != (c == SandboxName) || string(o.UID) != uid {
			t.Errorf("believed: %+v of %v", o, labels)
		}
		p := &v1.Pod{}
		p.UID, p.Name, p.Namespace = o.UID, name, namespace
		if made := ContainerName(p, c, o.Attempt); !strings.HasPrefix(strings.TrimPrefix(engineName, "/"), made) || o.Attempt < 0 || o.Attempt >= math.MaxInt32 {
			t.Errorf("%s is believed to be %s", engineName, made)
		}
		if strings.ContainsAny(uid+name+namespace+c, `/\`) || !filepath.IsLocal(uid) || uid == "." {
			t.Errorf("believed: %+v", o)
		}
		if _, err := Node("n").Own([]string{"x" + engineName}, labels); err == nil || errors.Is(err, ErrForeign) {
			t.Errorf("another name: %v", err)
		}
	})
}
