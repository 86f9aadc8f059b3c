package start

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

func dockerSecret(kind v1.SecretType, data string) *v1.Secret {
	key := v1.DockerConfigJsonKey
	if kind == v1.SecretTypeDockercfg {
		key = v1.DockerConfigKey
	}
	return &v1.Secret{Type: kind, Data: map[string][]byte{key: []byte(data)}}
}

func TestCredentials(t *testing.T) {
	// auth fields: u:p, u:p:q, no-colon
	auths := func(entries string) *v1.Secret {
		return dockerSecret(v1.SecretTypeDockerConfigJson, `{"auths":{`+entries+`}}`)
	}
	login := func(server, user string) string {
		return fmt.Sprintf(`%q:{"username":%q,"password":"p"}`, server, user)
	}
	for _, test := range []struct {
		name   string
		image  string
		secret *v1.Secret
		want   string // user:password@server of each
		err    string
	}{
		{name: "host", image: "reg.example/a/b", secret: auths(login("reg.example", "u")), want: "u:p@reg.example"},
		{name: "URL", image: "reg.example/a/b:1", secret: auths(login("https://reg.example/v2/", "u")), want: "u:p@reg.example"},
		{name: "plain URL", image: "reg.example/a/b", secret: auths(login("http://reg.example/v1", "u")), want: "u:p@reg.example"},
		{name: "other host", image: "reg.example/a/b", secret: auths(login("reg.other", "u"))},
		{name: "port", image: "reg.example:5000/a", secret: auths(login("reg.example:5000", "u")), want: "u:p@reg.example:5000"},
		{name: "port left out", image: "reg.example:5000/a", secret: auths(login("reg.example", "u"))},
		{name: "IPv6", image: "[fd00::1]:5000/a", secret: auths(login("[fd00::1]:5000", "u")), want: "u:p@[fd00::1]:5000"},
		{name: "path", image: "reg.example/team/a", secret: auths(login("reg.example/team", "u")), want: "u:p@reg.example"},
		{name: "other path", image: "reg.example/team/a", secret: auths(login("reg.example/other", "u"))},
		{name: "the most specific first", image: "reg.example/team/a",
			secret: auths(login("reg.example", "host") + "," + login("reg.example/team/a", "image") + "," + login("*.example", "any") + "," + login("reg.example/team", "team")),
			want:   "image:p@reg.example team:p@reg.example host:p@reg.example any:p@reg.example"},
		{name: "wildcard", image: "eu.reg.example/a", secret: auths(login("*.reg.example", "u")), want: "u:p@eu.reg.example"},
		{name: "wildcard within a label", image: "eu-1.reg.example/a", secret: auths(login("eu-?.reg.example", "u")), want: "u:p@eu-1.reg.example"},
		{name: "wildcard is one label", image: "a.b.reg.example/a", secret: auths(login("*.reg.example", "u"))},
		{name: "bad wildcard", image: "reg.example/a", secret: auths(login("[.example", "u"))},
		{name: "hub", image: "busybox", secret: auths(login("https://index.docker.io/v1/", "u")), want: "u:p@https://index.docker.io/v1/"},
		{name: "hub by its short name", image: "me/app", secret: auths(login("docker.io", "u")), want: "u:p@https://index.docker.io/v1/"},
		{name: "hub's registry", image: "docker.io/me/app", secret: auths(login("registry-1.docker.io", "u")), want: "u:p@https://index.docker.io/v1/"},
		{name: "hub twice", image: "busybox", secret: auths(login("docker.io", "u") + "," + login("index.docker.io", "u")), want: "u:p@https://index.docker.io/v1/"},
		{name: "hub's path", image: "me/app", secret: auths(login("docker.io/me", "u") + "," + login("docker.io/you", "v")), want: "u:p@https://index.docker.io/v1/"},
		{name: "not the hub's", image: "reg.example/busybox", secret: auths(login("docker.io", "u"))},
		{name: "auth", image: "reg.example/a", secret: auths(`"reg.example":{"auth":"dTpw"}`), want: "u:p@reg.example"},
		{name: "auth wins", image: "reg.example/a", secret: auths(`"reg.example":{"username":"x","password":"y","auth":"dTpwOnE="}`), want: "u:p:q@reg.example"},
		{name: "auth without padding", image: "reg.example/a", secret: auths(`"reg.example":{"auth":" dTpwOnE "}`), want: "u:p:q@reg.example"},
		{name: "auth without colon", image: "reg.example/a", secret: auths(`"reg.example":{"auth":"bm8tY29sb24="},` + login("reg.example/a", "u")), want: "u:p@reg.example",
			err: `entry "reg.example": auth must be base64 of username:password`},
		{name: "auth that is no base64", image: "reg.example/a", secret: auths(`"reg.example":{"auth":"%%"}`), err: `entry "reg.example": auth must be base64`},
		{name: "entry that is no object", image: "reg.example/a", secret: auths(`"reg.example":"hunter2"`), err: `entry "reg.example": want an object`},
		{name: "old form", image: "reg.example/a", secret: dockerSecret(v1.SecretTypeDockercfg, `{`+login("reg.example", "u")+`}`), want: "u:p@reg.example"},
		{name: "no JSON", image: "a", secret: dockerSecret(v1.SecretTypeDockerConfigJson, "hunter2"), err: "key .dockerconfigjson: it is not a Docker config in JSON"},
		{name: "old form, no JSON", image: "a", secret: dockerSecret(v1.SecretTypeDockercfg, "hunter2"), err: "key .dockercfg: it is not a Docker config in JSON"},
		{name: "other type", image: "a", secret: dockerSecret(v1.SecretTypeOpaque, "{}"), err: `type is "Opaque"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			name, err := podspec.ParseImage(test.image)
			if err != nil {
				t.Fatal(err)
			}
			logins, err := secretLogins(test.secret)
			if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("got %v, want %s", err, test.err)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error holds the secret: %v", err)
			}
			var words []string
			for _, c := range credentialsFor(name.Named, logins) {
				words = append(words, c.Username+":"+c.Password+"@"+c.ServerAddress)
			}
			if got := strings.Join(words, " "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func FuzzSecretLogins(f *testing.F) {
	f.Add(`{"auths":{"reg.example":{"auth":"dTpw"}}}`, true)
	f.Add(`{"https://index.docker.io/v1/":{"username":"u","password":"p"}}`, false)
	f.Add(`{"auths":{"*.x/[":{}, "":{}}}`, true)
	name, err := podspec.ParseImage("reg.example/a/b")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data string, modern bool) {
		kind := v1.SecretTypeDockercfg
		if modern {
			kind = v1.SecretTypeDockerConfigJson
		}
		logins, _ := secretLogins(dockerSecret(kind, data))
		for _, l := range logins {
			if host, _ := podspec.SplitServer(l.Server); strings.Contains(host, "/") {
				t.Errorf("host %q holds a path", host)
			}
		}
		if n := len(credentialsFor(name.Named, logins)); n > len(logins) {
			t.Errorf("%d credentials of %d logins", n, len(logins))
		}
	})
}

// gatedImages is an image store whose pulls wait until the test releases them.
type gatedImages struct {
	started chan string
	release chan error
}

func (g *gatedImages) Lookup(context.Context, string) (pod.Image, bool, error) {
	return pod.Image{}, false, nil
}

func (g *gatedImages) Pull(ctx context.Context, name string, creds []pod.Credential) (pod.Image, int, error) {
	g.started <- fmt.Sprint(name, len(creds))
	select {
	case err := <-g.release:
		return pod.Image{ID: name}, len(creds) - 1, err
	case <-ctx.Done():
		g.started <- "cancelled " + name
		return pod.Image{}, -1, ctx.Err()
	}
}

func newGated() *gatedImages {
	return &gatedImages{started: make(chan string, 10), release: make(chan error)}
}

func TestPullsAreShared(t *testing.T) {
	images := newGated()
	p := newPuller(Config{}, images, testingclock.NewFakePassiveClock(time.Now()))
	type result struct {
		image pod.Image
		err   error
	}
	results := make(chan result)
	pull := func(ctx context.Context, name string, creds ...pod.Credential) {
		f := p.join(name, creds)
		go func() {
			r, err := p.wait(ctx, f)
			results <- result{r.image, err}
		}()
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		pull(t.Context(), "a")
	}
	pull(ctx, "a") // leaves early: the others' pull continues
	pull(t.Context(), "a", pod.Credential{Username: "u"})
	first, second := <-images.started, <-images.started
	if first == second || len(images.started) > 0 {
		t.Fatalf("pulls under way: %s, %s and %d more, want one of a0 and a1 each", first, second, len(images.started))
	}
	cancel()
	if r := <-results; !errors.Is(r.err, context.Canceled) {
		t.Errorf("the one that left got %v", r.err)
	}
	images.release <- nil
	images.release <- nil
	for range 4 {
		if r := <-results; r.err != nil || r.image.ID != "a" {
			t.Errorf("got %+v", r)
		}
	}

	// A pull without waiters ends, and a later one starts again.
	ctx, cancel = context.WithCancel(t.Context())
	pull(ctx, "b")
	<-images.started
	cancel()
	if got := <-images.started; got != "cancelled b" {
		t.Errorf("got %s", got)
	}
	<-results
	pull(t.Context(), "b")
	<-images.started
	images.release <- nil
	if r := <-results; r.err != nil {
		t.Error(r.err)
	}
	if len(p.flights) != 0 {
		t.Errorf("%d pulls are left", len(p.flights))
	}
}

func TestPullLimits(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want int
	}{
		{Config{SerializePulls: true, MaxParallelPulls: 3}, 1},
		{Config{MaxParallelPulls: 2}, 2},
		{Config{}, 4},
		{Config{PullQPS: 1000, PullBurst: 10}, 4},
	} {
		images := newGated()
		p := newPuller(test.cfg, images, testingclock.NewFakePassiveClock(time.Now()))
		done := make(chan error)
		for i := range 4 {
			f := p.join(fmt.Sprint("image", i), nil)
			go func() {
				_, err := p.wait(t.Context(), f)
				done <- err
			}()
		}
		under := 0
		for finished := 0; finished < 4; finished++ {
			for under < min(test.want, 4-finished) {
				<-images.started
				under++
			}
			select {
			case extra := <-images.started:
				t.Errorf("%+v: %s is pulled beside %d others", test.cfg, extra, under)
			default:
			}
			images.release <- nil
			under--
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPullBackOff(t *testing.T) {
	clk := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	p := newPuller(Config{}, newGated(), clk)
	key, other := pullKey{"u1", "a"}, pullKey{"u2", "a"}
	step := func(d time.Duration) { clk.SetTime(clk.Now().Add(d)) }
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		p.failed(key, fmt.Sprint("failure ", i))
		wait, message := p.backedOff(key)
		if wait != want*time.Second || message != fmt.Sprint("failure ", i) {
			t.Errorf("failure %d: wait %v %q, want %v s", i, wait, message, int(want))
		}
		step(wait - time.Second)
		if wait, _ := p.backedOff(key); wait != time.Second {
			t.Errorf("a second before its end the back-off is %v", wait)
		}
		step(time.Second)
		if wait, _ := p.backedOff(key); wait != 0 {
			t.Errorf("after its end the back-off is %v", wait)
		}
	}
	if wait, _ := p.backedOff(other); wait != 0 {
		t.Errorf("another pod waits %v", wait)
	}
	p.succeeded(key)
	p.failed(key, "again")
	if wait, _ := p.backedOff(key); wait != 10*time.Second {
		t.Errorf("after a success the first back-off is %v", wait)
	}
	step(601 * time.Second)
	p.failed(other, "x")
	if len(p.failures) != 1 {
		t.Errorf("%d failures are remembered, want the new one alone", len(p.failures))
	}
}

func TestPullError(t *testing.T) {
	for _, test := range []struct {
		err             error
		reason, message string
	}{
		{errors.New("manifest unknown"), "ErrImagePull", "manifest unknown"},
		{fmt.Errorf("cannot pull: %w", pod.ErrRegistryUnavailable), "RegistryUnavailable", "image pull failed for img because the registry is unavailable: cannot pull: RegistryUnavailable"},
		{errors.New("error parsing HTTP 503 response body: <HTML><body>long"), "RegistryUnavailable", "image pull failed for img because the registry is unavailable: error parsing HTTP 503 response body: (an HTML page)"},
		{errors.New("error parsing HTTP 404 response body: <html>x"), "ErrImagePull", "error parsing HTTP 404 response body: (an HTML page)"},
	} {
		got := pullError("img", test.err)
		if got.Reason != test.reason || got.Message != test.message || !errors.Is(got, test.err) {
			t.Errorf("%v: got %s: %s", test.err, got.Reason, got.Message)
		}
	}
}
