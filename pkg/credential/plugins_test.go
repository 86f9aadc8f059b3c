package credential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/command/commandtest"
)

const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"

const plain = `- name: plugin.exe
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.example", "reg.test:5000/team"]
  defaultCacheDuration: 10m
  args: [get, --quiet]
  env: [{name: REGION, value: north}]
`

const withToken = plain + `  tokenAttributes:
    serviceAccountTokenAudience: registry
    requireServiceAccount: true
    cacheType: ServiceAccount
    requiredServiceAccountAnnotationKeys: [registry/role]
    optionalServiceAccountAnnotationKeys: [registry/zone]
`

// bench is a node with one plugin, which returns answer.
type bench struct {
	*Plugins
	t      *testing.T
	fake   *commandtest.Runner
	clock  *testingclock.FakePassiveClock
	env    []string
	mu     sync.Mutex
	asked  []api.CredentialProviderRequest
	answer func(request api.CredentialProviderRequest) (string, error)
}

func newBench(t *testing.T, providers string) *bench {
	t.Helper()
	dir := t.TempDir()
	config, program := filepath.Join(dir, "providers.yaml"), filepath.Join(dir, "plugin.exe")
	if err := errors.Join(os.WriteFile(config, []byte(head+providers), 0o600), os.WriteFile(program, nil, 0o700)); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, fake: commandtest.New(), clock: testingclock.NewFakePassiveClock(time.Unix(0, 0))}
	b.fake.Install(program, func(stdin []byte, args []string) ([]byte, error) {
		if !slices.Equal(args, []string{"get", "--quiet"}) {
			t.Errorf("args %q", args)
		}
		var request api.CredentialProviderRequest
		if err := json.Unmarshal(stdin, &request); err != nil || request.Kind != "CredentialProviderRequest" {
			t.Errorf("request %s: %v", stdin, err)
		}
		b.mu.Lock()
		b.asked = append(b.asked, request)
		b.mu.Unlock()
		out, err := b.answer(request)
		return []byte(out), err
	})
	var err error
	b.Plugins, err = New(config, dir, Parts{
		ServiceAccount: func(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
			switch name {
			case "builder":
				return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "sa-1",
					Annotations: map[string]string{"registry/role": "reader", "registry/zone": "z", "other": "x"}}}, nil
			case "plain":
				return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "sa-2"}}, nil
			}
			return nil, errors.New("not found")
		},
		Token: func(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			r.Status.Token = fmt.Sprintf("token of %s/%s for %s in %s", namespace, account, r.Spec.Audiences[0], r.Spec.BoundObjectRef.Name)
			return r, nil
		},
		Runner: func(env []string) command.Runner { b.env = env; return b.fake },
		Clock:  b.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.answer = func(api.CredentialProviderRequest) (string, error) {
		return response("Image", "", `"a.example":{"username":"u","password":"p"}`), nil
	}
	return b
}

func response(keyType, duration, auth string) string {
	if duration != "" {
		duration = `"cacheDuration":"` + duration + `",`
	}
	return fmt.Sprintf(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":%q,%s"auth":{%s}}`, keyType, duration, auth)
}

func ofAccount(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + name, UID: "u"}, Spec: v1.PodSpec{ServiceAccountName: name}}
}

func (b *bench) logins(account, image string) string {
	var words []string
	for _, l := range b.Logins(b.t.Context(), ofAccount(account), image) {
		word := l.Username + ":" + l.Password + "@" + l.Server
		if l.Source.Kind != "" {
			word += fmt.Sprintf(" of %s %s/%s", l.Source.Kind, l.Source.Namespace, l.Source.Name)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func TestPluginIsAsked(t *testing.T) {
	b := newBench(t, plain)
	if got := b.logins("", "a.example/team/app"); got != "u:p@a.example" {
		t.Errorf("got %s", got)
	}
	if len(b.asked) != 1 || b.asked[0].Image != "a.example/team/app" || b.asked[0].ServiceAccountToken != "" {
		t.Errorf("asked %+v", b.asked)
	}
	if !slices.Contains(b.env, "REGION=north") || len(b.env) < 2 {
		t.Errorf("environment %q", b.env)
	}
	for _, other := range []string{"b.c.example/app", "reg.test/team/app", "reg.test:5000/other/app", "docker.io/library/busybox"} {
		if got := b.logins("", other); got != "" || len(b.asked) != 1 {
			t.Errorf("%s: got %s, asked %d times", other, got, len(b.asked))
		}
	}
	if b.logins("", "reg.test:5000/team/app"); len(b.asked) != 2 {
		t.Errorf("asked %d times, want 2: the path matches", len(b.asked))
	}
}

func TestAnswersAreCached(t *testing.T) {
	images := []string{"a.example/x", "a.example/x", "a.example/y", "b.example/x"}
	for _, test := range []struct {
		keyType, duration string
		asked             int           // number of requests for images
		holds             time.Duration // 0: not at all
	}{
		{"Image", "", 3, 10 * time.Minute},
		{"Registry", "1m", 2, time.Minute},
		{"Global", "1h", 1, time.Hour},
		{"Global", "0s", 4, 0},
	} {
		t.Run(test.keyType+test.duration, func(t *testing.T) {
			b := newBench(t, plain)
			b.answer = func(api.CredentialProviderRequest) (string, error) {
				return response(test.keyType, test.duration, `"*.example":{"username":"u","password":"p"}`), nil
			}
			for _, image := range images {
				if got := b.logins("", image); got != "u:p@*.example" {
					t.Errorf("%s: got %s", image, got)
				}
			}
			if len(b.asked) != test.asked {
				t.Errorf("asked %d times, want %d", len(b.asked), test.asked)
			}
			if test.holds == 0 {
				return
			}
			b.clock.SetTime(b.clock.Now().Add(test.holds - time.Second))
			if b.logins("", images[0]); len(b.asked) != test.asked {
				t.Error("asked again before the answer's time was over")
			}
			b.clock.SetTime(b.clock.Now().Add(time.Second))
			if b.logins("", images[0]); len(b.asked) != test.asked+1 {
				t.Error("not asked again after the answer's time")
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	const image = "a.example/x"
	for name, answer := range map[string]string{
		"nothing":     "",
		"no JSON":     "hunter2",
		"other kind":  `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"Pod"}`,
		"old version": strings.Replace(response("Image", "", `"a.example":{"username":"u","password":"hunter2"}`), "k8s.io/v1", "k8s.io/v1alpha1", 1),
		"cache key":   response("Pod", "", `"a.example":{"username":"u","password":"hunter2"}`),
	} {
		b := newBench(t, plain)
		b.answer = func(api.CredentialProviderRequest) (string, error) { return answer, nil }
		logins, err := b.list[0].logins(t.Context(), ofAccount(""), image)
		if err == nil || len(logins) > 0 || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v", name, logins, err)
		}
	}
	b := newBench(t, plain)
	b.answer = func(api.CredentialProviderRequest) (string, error) { return "", commandtest.Exit(1, "no network") }
	if _, err := b.list[0].logins(t.Context(), ofAccount(""), image); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Errorf("a plugin that fails: %v", err)
	}
	if got := b.logins("", image); got != "" {
		t.Errorf("a plugin that fails gives %s", got)
	}
}

func TestServiceAccountTokens(t *testing.T) {
	b := newBench(t, withToken)
	b.answer = func(r api.CredentialProviderRequest) (string, error) {
		return response("Registry", "", fmt.Sprintf(`"a.example":{"username":%q,"password":"p"}`, r.ServiceAccountAnnotations["registry/role"])), nil
	}
	if got := b.logins("builder", "a.example/x"); got != "reader:p@a.example of service account shop/builder" {
		t.Errorf("got %s", got)
	}
	if r := b.asked[0]; r.ServiceAccountToken != "token of shop/builder for registry in web-builder" || len(r.ServiceAccountAnnotations) != 2 || r.ServiceAccountAnnotations["registry/zone"] != "z" {
		t.Errorf("asked %+v", r)
	}
	if b.logins("builder", "a.example/y"); len(b.asked) != 1 {
		t.Errorf("asked %d times for one service account, want 1", len(b.asked))
	}
	for account, why := range map[string]string{"plain": "lacks the annotation", "": "there is none", "gone": "it does not exist"} {
		if got := b.logins(account, "a.example/x"); got != "" || len(b.asked) != 1 {
			t.Errorf("service account %q (%s): got %s", account, why, got)
		}
	}
	b.answer = func(r api.CredentialProviderRequest) (string, error) {
		return response("Registry", "", fmt.Sprintf(`"b.example":{"username":"u","password":%q}`, r.ServiceAccountToken)), nil
	}
	if got := b.logins("builder", "b.example/x"); got != "" {
		t.Errorf("a token as password was taken: %s", got)
	}

	b = newBench(t, strings.Replace(withToken, "cacheType: ServiceAccount", "cacheType: Token", 1))
	b.answer = func(r api.CredentialProviderRequest) (string, error) {
		return response("Registry", "", fmt.Sprintf(`"b.example":{"username":"u","password":%q}`, r.ServiceAccountToken)), nil
	}
	if got := b.logins("builder", "b.example/x"); got != "u:token of shop/builder for registry in web-builder@b.example of service account shop/builder" {
		t.Errorf("got %s", got)
	}
	other := ofAccount("builder")
	other.UID = "v"
	if b.Logins(t.Context(), other, "b.example/x"); len(b.asked) != 2 {
		t.Errorf("asked %d times for two pods' tokens, want 2", len(b.asked))
	}
}

func TestSameQuestionsAreAskedOnce(t *testing.T) {
	b := newBench(t, plain)
	begun, go1 := make(chan bool, 8), make(chan bool)
	b.answer = func(api.CredentialProviderRequest) (string, error) {
		begun <- true
		<-go1
		return response("Image", "0s", `"a.example":{"username":"u","password":"p"}`), nil
	}
	results := make(chan string)
	go func() { results <- b.logins("", "a.example/x") }()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := b.Logins(ctx, ofAccount(""), "a.example/x"); len(got) != 0 {
		t.Errorf("who has gone got %v", got)
	}
	close(go1)
	if got := <-results; got != "u:p@a.example" || len(b.asked) != 1 {
		t.Errorf("got %s, asked %d times", got, len(b.asked))
	}
}

func TestConfig(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"good", head + withToken, ""},
		{"JSON", `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"CredentialProviderConfig","providers":[{"name":"p","apiVersion":"credentialprovider.kubelet.k8s.io/v1","matchImages":["a"],"defaultCacheDuration":"0s"}]}`, ""},
		{"none", head, "holds no credential provider"},
		{"kind", strings.Replace(head, "CredentialProviderConfig", "Pod", 1) + plain, "it is kubelet.config.k8s.io/v1 Pod; want kubelet.config.k8s.io/v1 CredentialProviderConfig"},
		{"unknown field", head + plain + "  colour: red\n", `unknown field "colour"`},
		{"twice", head + plain + plain, `providers[1].name: "plugin.exe" is used twice`},
		{"name", head + strings.Replace(plain, "plugin.exe", "../plugin", 1), `providers[0].name: "../plugin"; want the name of a program`},
		{"version", head + strings.Replace(plain, "k8s.io/v1\n", "k8s.io/v1alpha1\n", 1), `providers[0].apiVersion: "credentialprovider.kubelet.k8s.io/v1alpha1"; want`},
		{"duration", head + strings.Replace(plain, "10m", "-1s", 1), "providers[0].defaultCacheDuration: want a duration"},
		{"no patterns", head + strings.Replace(plain, `["*.example", "reg.test:5000/team"]`, "[]", 1), "providers[0].matchImages: none"},
		{"pattern", head + strings.Replace(plain, `"*.example"`, `"https://a"`, 1), `providers[0].matchImages: "https://a"; want a registry`},
		{"variable", head + strings.Replace(plain, "REGION", "A=B", 1), `providers[0].env: name "A=B"`},
		{"audience", head + strings.Replace(withToken, "serviceAccountTokenAudience: registry", "", 1), "tokenAttributes.serviceAccountTokenAudience: want"},
		{"cache type", head + strings.Replace(withToken, "cacheType: ServiceAccount", "cacheType: Pod", 1), `tokenAttributes.cacheType: "Pod"; want Token or ServiceAccount`},
		{"not required", head + strings.Replace(withToken, "requireServiceAccount: true", "requireServiceAccount: false", 1), "requiredServiceAccountAnnotationKeys: want none"},
		{"same key", head + strings.Replace(withToken, "registry/zone", "registry/role", 1), `annotation key "registry/role" is used twice`},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := read(file)
			if (err == nil) != (test.want == "") || err != nil && !(strings.Contains(err.Error(), test.want) && strings.Contains(err.Error(), file)) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yaml": head + plain, "a.yml": head + strings.Replace(plain, "plugin.exe", "first", 1), "notes.txt": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := read(dir); err != nil || len(all) != 2 || all[0].Name != "first" {
		t.Errorf("a directory: %v, %v", all, err)
	}
	if _, err := New(filepath.Join(dir, "b.yaml"), dir, Parts{}); err == nil || !errors.Is(err, command.ErrNotFound) || !strings.Contains(err.Error(), "plugin.exe") {
		t.Errorf("without the program: %v", err)
	}
}
