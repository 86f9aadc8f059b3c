package server

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"
)

// gate is an authenticator and an authorizer over a fake API, with a fake clock.
type gate struct {
	api   *fakeAPI
	clock *clocktesting.FakePassiveClock
	authn *authenticator
	authz *authorizer
}

func newGate(t *testing.T, authentication Authentication) *gate {
	t.Helper()
	g := &gate{
		api:   &fakeAPI{tokens: map[string]string{"good-token": "reader"}, rules: map[string][]string{"reader": {"get metrics"}}},
		clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	var err error
	if g.authn, err = newAuthenticator(authentication, tokenReviews{g.api}, g.clock); err != nil {
		t.Fatal(err)
	}
	if g.authz, err = newAuthorizer(Authorization{}, "node-1", accessReviews{g.api}, g.clock); err != nil {
		t.Fatal(err)
	}
	g.authn.tokens.backoff.Duration, g.authz.answers.backoff.Duration = time.Millisecond, time.Millisecond
	return g
}

func (g *gate) who(header string) string {
	r := httptest.NewRequest("GET", "/", nil)
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	who, err := g.authn.authenticate(r)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case who == nil:
		return "unknown"
	}
	return fmt.Sprintf("%s %s %v, header %q", who.Name, who.UID, who.Groups, r.Header.Get("Authorization"))
}

func TestTokens(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true})
	reader := `reader uid-reader [testers system:authenticated], header ""`
	for _, test := range []struct {
		header, want string
		asked        int // reviews after this step
		later        time.Duration
	}{
		{"", "unknown", 0, 0},
		{"Basic Zm9vOmJhcg==", "unknown", 0, 0},
		{"Bearer", "unknown", 0, 0},
		{"Bearer  ", "unknown", 0, 0},
		{"Bearer good-token", reader, 1, 0},
		{"bearer good-token", reader, 1, time.Minute},
		{"Bearer good-token", reader, 1, 2 * time.Minute},
		{"Bearer good-token", reader, 2, 0},
		{"Bearer bad", "error: invalid bearer token", 3, 0},
		{"Bearer bad", "error: invalid bearer token", 3, 11 * time.Second},
		{"Bearer bad", "error: invalid bearer token", 4, 0},
	} {
		if got := g.who(test.header); got != test.want {
			t.Errorf("%q: got %s, want %s", test.header, got, test.want)
		}
		if asked := len(g.api.asked); asked != test.asked {
			t.Errorf("%q: the API server was asked %d times, want %d", test.header, asked, test.asked)
		}
		g.clock.SetTime(g.clock.Now().Add(test.later))
	}
}

func TestTokensWhenTheAPIServerIsGone(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true, Anonymous: true})
	g.api.fail = errors.New("connection refused")
	if got := g.who("Bearer good-token"); !strings.HasPrefix(got, "error: cannot review a bearer token: connection refused") {
		t.Errorf("got %s", got) // not anonymous: the request had a credential
	}
	g.api.fail = nil
	if got := g.who("Bearer good-token"); !strings.HasPrefix(got, "reader") {
		t.Errorf("an error was remembered: %s", got)
	}
	if got := g.who(""); got != `system:anonymous  [system:unauthenticated], header ""` {
		t.Errorf("got %s", got)
	}
	if _, err := newAuthenticator(Authentication{}, nil, g.clock); err == nil {
		t.Error("a server that can authenticate no one was made")
	}
	if _, err := newAuthenticator(Authentication{Webhook: true}, nil, g.clock); err == nil {
		t.Error("webhook authentication without an API server was accepted")
	}
}

func TestRetry(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true})
	g.api.fail = apierrors.NewInternalError(errors.New("starting up"))
	if got := g.who("Bearer good-token"); !strings.Contains(got, "starting up") {
		t.Errorf("got %s", got)
	}
	if asked := len(g.api.asked); asked != g.authn.tokens.backoff.Steps {
		t.Errorf("asked %d times, want %d", asked, g.authn.tokens.backoff.Steps)
	}
}

func TestAuthorizationIsRemembered(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true})
	reader := &identity{Name: "reader"}
	for _, test := range []struct {
		sub   string
		want  bool
		asked int
		later time.Duration
	}{
		{"metrics", true, 1, 5 * time.Minute},
		{"metrics", true, 1, time.Second},
		{"metrics", true, 2, 0},
		{"proxy", false, 3, 30 * time.Second},
		{"proxy", false, 3, time.Second},
		{"proxy", false, 4, 0},
	} {
		got, err := g.authz.authorize(t.Context(), reader, "get", test.sub)
		if err != nil || got != test.want || len(g.api.asked) != test.asked {
			t.Errorf("%s: got %t (%v) after %d questions, want %t after %d", test.sub, got, err, len(g.api.asked), test.want, test.asked)
		}
		g.clock.SetTime(g.clock.Now().Add(test.later))
	}
	if allowed, _ := g.authz.authorize(t.Context(), &identity{Name: "reader", Groups: []string{"others"}}, "get", "metrics"); !allowed || len(g.api.asked) != 5 {
		t.Error("the answer for one identity was used for another")
	}
	g.api.fail = errors.New("connection refused")
	if allowed, err := g.authz.authorize(t.Context(), reader, "get", "stats"); allowed || err == nil {
		t.Error("an error let a client in")
	}
}

func TestOneQuestionForMany(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true})
	g.api.gate = make(chan struct{})
	var all, begun sync.WaitGroup
	for range 50 {
		begun.Add(1)
		all.Go(func() {
			begun.Done()
			if allowed, err := g.authz.authorize(t.Context(), &identity{Name: "reader"}, "get", "metrics"); !allowed || err != nil {
				t.Errorf("got %t, %v", allowed, err)
			}
		})
	}
	begun.Wait()
	close(g.api.gate)
	all.Wait()
	if asked := len(g.api.asked); asked != 1 {
		t.Errorf("the API server was asked %d times", asked)
	}
}

func TestAuthorizationModes(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	always, err := newAuthorizer(Authorization{Mode: AlwaysAllow}, "", nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	if allowed, err := always.authorize(t.Context(), &identity{Name: "anyone"}, "get", "proxy"); !allowed || err != nil {
		t.Errorf("AlwaysAllow: %t, %v", allowed, err)
	}
	for _, config := range []Authorization{{}, {Mode: Webhook}, {Mode: "ABAC"}} {
		if _, err := newAuthorizer(config, "node-1", nil, clock); err == nil {
			t.Errorf("%+v without an API server was accepted", config)
		}
	}
}

// TestCertificates passes certificates directly to the authenticator, with a fake clock.
func TestCertificates(t *testing.T) {
	ca, other := newAuthority(t, "CA"), newAuthority(t, "other CA")
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(data []byte) {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(ca.pem())
	g := newGate(t, Authentication{ClientCAFile: file})
	uid := func(values ...any) pkix.Name {
		name := pkix.Name{CommonName: "user"}
		for _, value := range values {
			name.ExtraNames = append(name.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: value})
		}
		return name
	}
	who := func(by *authority, subject pkix.Name, usage x509.ExtKeyUsage) string {
		cert, _ := sign(t, &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{usage}}, by)
		r := httptest.NewRequest("GET", "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		who, err := g.authn.authenticate(r)
		switch {
		case err != nil:
			return "error"
		case who == nil:
			return "unknown"
		}
		if id := who.Extra[credentialID]; len(id) != 1 || !strings.HasPrefix(id[0], "X509SHA256=") {
			t.Errorf("%s has the credential id %q", who.Name, id)
		}
		return fmt.Sprintf("%s %q %v", who.Name, who.UID, who.Groups)
	}
	client, server := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for _, test := range []struct {
		name, got, want string
	}{
		{"good", who(ca, pkix.Name{CommonName: "user", Organization: []string{"a"}}, client), `user "" [a system:authenticated]`},
		{"with UID", who(ca, uid("u-1"), client), `user "u-1" [system:authenticated]`},
		{"with two UIDs", who(ca, uid("u-1", "u-2"), client), "error"},
		{"no name", who(ca, pkix.Name{Organization: []string{"a"}}, client), "unknown"},
		{"of a server", who(ca, pkix.Name{CommonName: "user"}, server), "error"},
		{"of a stranger", who(other, pkix.Name{CommonName: "user"}, client), "error"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, test.got, test.want)
		}
	}
	now := g.clock.Now()
	g.clock.SetTime(now.Add(2 * time.Hour))
	if got := who(ca, pkix.Name{CommonName: "user"}, client); got != "error" {
		t.Errorf("expired: got %s", got)
	}
	g.clock.SetTime(now)

	write([]byte("half a file")) // a bad file changes nothing
	if got := who(ca, pkix.Name{CommonName: "user"}, client); got != `user "" [system:authenticated]` {
		t.Errorf("with a bad CA file: got %s", got)
	}
	write(append(other.pem(), '\n'))
	if got := who(ca, pkix.Name{CommonName: "user"}, client); got != "error" {
		t.Errorf("of the former CA: got %s", got)
	}
	if got := who(other, pkix.Name{CommonName: "user"}, client); got != `user "" [system:authenticated]` {
		t.Errorf("of the new CA: got %s", got)
	}
}

// TestClientCAReloadOnOpenConnection: a connection opened under the former CA has no user after the change.
func TestClientCAReloadOnOpenConnection(t *testing.T) {
	r := newRig(t, nil)
	client := r.http(r.as("root"))
	if status, _ := r.do(client, "GET", "/healthz", ""); status != http.StatusOK {
		t.Fatalf("got %d", status)
	}
	if err := os.WriteFile(r.caFile, append(newAuthority(t, "new CA").pem(), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.do(client, "GET", "/healthz", ""); status != http.StatusUnauthorized {
		t.Errorf("got %d, want 401", status)
	}
}
