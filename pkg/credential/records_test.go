package credential

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

func ofSecret(name, uid, password string) pod.Credential {
	return pod.Credential{Username: "u", Password: password, Source: pod.CredentialSource{Kind: pod.FromSecret, Namespace: "shop", Name: name, UID: types.UID(uid)}}
}

var (
	image     = pod.Image{ID: "sha256:1"}
	preloaded = pod.Image{ID: "sha256:2"}
	ofBuilder = pod.Credential{Username: "u", Password: "t", Source: pod.CredentialSource{Kind: pod.FromServiceAccount, Namespace: "shop", Name: "builder", UID: "s"}}
	ofNode    = pod.Credential{Username: "n", Password: "n"}
)

const name = "reg.example/team/app:1"

func newRecords(t *testing.T, root string, policy Policy, allowed ...string) *Records {
	t.Helper()
	r, err := NewRecords(root, policy, allowed)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func usable(r *Records, name string, img pod.Image, creds ...pod.Credential) bool {
	return r.Usable(name, img, func() []pod.Credential { return creds })
}

func pulled(t *testing.T, r *Records, name string, img pod.Image, cred pod.Credential) {
	t.Helper()
	if err := r.Intend(name); err != nil {
		t.Fatal(err)
	}
	r.Pulled(name, img, cred)
}

// TestWhoMayUse checks who may use an image that was pulled with one credential, before and after a restart of the agent.
func TestWhoMayUse(t *testing.T) {
	for _, test := range []struct {
		name string
		with pod.Credential
		by   pod.Credential
		want bool
	}{
		{"the same secret", ofSecret("a", "1", "p"), ofSecret("a", "1", "p"), true},
		{"the secret, renewed", ofSecret("a", "1", "p"), ofSecret("a", "1", "new"), true},
		{"another secret with the same login", ofSecret("a", "1", "p"), ofSecret("b", "2", "p"), true},
		{"another secret", ofSecret("a", "1", "p"), ofSecret("b", "2", "q"), false},
		{"the secret, recreated with another login", ofSecret("a", "1", "p"), ofSecret("a", "2", "q"), false},
		{"no credentials", ofSecret("a", "1", "p"), pod.Credential{}, false},
		{"the node's login after a secret's", ofSecret("a", "1", "p"), ofNode, false},
		{"after a pull without credentials", pod.Credential{}, pod.Credential{}, true},
		{"after a pull with the node's login", ofNode, pod.Credential{}, true},
		{"the same service account", ofBuilder, ofBuilder, true},
		{"a secret after a service account", ofBuilder, ofSecret("a", "1", "t"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			r := newRecords(t, root, NeverVerifyPreloaded)
			pulled(t, r, name, image, test.with)
			for range 2 {
				if got := usable(r, name, image, test.by); got != test.want {
					t.Errorf("usable: %t, want %t", got, test.want)
				}
				r = newRecords(t, root, NeverVerifyPreloaded)
			}
			if usable(r, "reg.example/other:1", image, test.by) {
				t.Error("a name under which it was never pulled needs no credentials")
			}
			if got := usable(r, "reg.example/team/app:2", image, test.by); got != test.want {
				t.Errorf("by another tag: %t, want %t", got, test.want)
			}
			if left, _ := filepath.Glob(filepath.Join(root, "image_manager", "pulling", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			text, _ := os.ReadFile(r.recordFile(image))
			if len(text) == 0 || strings.Contains(string(text), `"p"`) {
				t.Errorf("record %s", text)
			}
		})
	}
}

// TestRenewedSecretCounts: a pod uses an image with a renewed secret. The renewed login then also counts for others.
func TestRenewedSecretCounts(t *testing.T) {
	r := newRecords(t, t.TempDir(), NeverVerifyPreloaded)
	pulled(t, r, name, image, ofSecret("a", "1", "p"))
	if usable(r, name, image, ofSecret("b", "2", "new")) {
		t.Error("usable before")
	}
	if !usable(r, name, image, ofSecret("a", "1", "new")) || !usable(r, name, image, ofSecret("b", "2", "new")) {
		t.Error("not usable after")
	}
	if usable(r, name, image, ofSecret("c", "3", "p")) {
		t.Error("the login that the secret had before still counts")
	}
}

func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		policy       Policy
		allowed      []string
		pulled, have bool // whether a pod without credentials may use an image that we pulled with some, and one that was here before
	}{
		{NeverVerify, nil, true, true},
		{NeverVerifyPreloaded, nil, false, true},
		{NeverVerifyAllowed, []string{"reg.example/*"}, true, true},
		{NeverVerifyAllowed, []string{"reg.example/team/app"}, true, true},
		{NeverVerifyAllowed, []string{"reg.example/team/ap"}, false, false},
		{AlwaysVerify, nil, false, false},
	} {
		r := newRecords(t, t.TempDir(), test.policy, test.allowed...)
		pulled(t, r, name, image, ofSecret("a", "1", "p"))
		if got := usable(r, name, image); got != test.pulled {
			t.Errorf("%s %v: pulled: %t", test.policy, test.allowed, got)
		}
		if got := usable(r, name, preloaded); got != test.have {
			t.Errorf("%s %v: preloaded: %t", test.policy, test.allowed, got)
		}
	}
	for _, test := range []struct {
		policy  Policy
		allowed []string
		want    string
	}{
		{"Sometimes", nil, `policy "Sometimes": want NeverVerifyPreloadedImages`},
		{NeverVerifyAllowed, nil, "with 0 allowed images"},
		{AlwaysVerify, []string{"a"}, "with 1 allowed images"},
		{NeverVerifyAllowed, []string{"a:1"}, `allowed image "a:1": want a name without tag`},
		{NeverVerifyAllowed, []string{"*.example/a"}, `allowed image "*.example/a"`},
	} {
		if _, err := NewRecords(t.TempDir(), test.policy, test.allowed); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %v: %v, want %s", test.policy, test.allowed, err, test.want)
		}
	}
}

// TestKilledWhilePulling: a pull never ends. What has arrived by then does not count as preloaded.
func TestKilledWhilePulling(t *testing.T) {
	root := t.TempDir()
	r := newRecords(t, root, NeverVerifyPreloaded)
	for range 2 {
		if err := r.Intend(name); err != nil {
			t.Fatal(err)
		}
	}
	r.Failed(name, false)
	for _, r := range []*Records{r, newRecords(t, root, NeverVerifyPreloaded)} {
		if usable(r, name, image, ofNode) {
			t.Error("usable while the pull may still be under way")
		}
	}
	r.Failed(name, true)
	if usable(r, name, image) {
		t.Error("usable after a pull that was given up")
	}
	if err := r.Intend(name); err != nil {
		t.Fatal(err)
	}
	r.Failed(name, false)
	if !usable(r, name, image) {
		t.Error("not usable after all pulls failed: it was here before")
	}
	// An image with a damaged record requires credentials, and the next pull repairs the record.
	pulled(t, r, name, image, ofNode)
	if err := os.WriteFile(r.recordFile(image), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if usable(r, name, image, ofNode) {
		t.Error("usable by a damaged record")
	}
	pulled(t, r, name, image, ofNode)
	if !usable(r, name, image) {
		t.Error("not repaired")
	}
}

func TestPrune(t *testing.T) {
	r := newRecords(t, t.TempDir(), NeverVerifyPreloaded)
	if err := r.Prune(nil, time.Now()); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	other := pod.Image{ID: "sha256:3"}
	pulled(t, r, name, image, ofNode)
	pulled(t, r, "gone:1", other, ofNode)
	if err := r.Prune([]string{image.ID}, time.Now().Add(-time.Hour)); err != nil {
		t.Error(err)
	}
	if _, found := r.load(other); !found {
		t.Error("a record that is newer than the list of images was removed")
	}
	if err := r.Prune([]string{image.ID}, time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	_, kept := r.load(image)
	if _, found := r.load(other); found || !kept {
		t.Errorf("left: gone %t, present %t", found, kept)
	}
}
