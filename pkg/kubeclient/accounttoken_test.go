package kubeclient

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	authentication "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
)

// accountToken is a token in the API server's format, bound to node1 and valid from issued to expires.
func accountToken(issued, expires time.Time, serial int) string {
	claims := fmt.Sprintf(`{"iat":%d,"exp":%d,"jti":"%d","kubernetes.io":{"namespace":"kube-system","serviceaccount":{"name":"winkube-proxy","uid":"a"},"node":{"name":"node1","uid":"n"}}}`, issued.Unix(), expires.Unix(), serial)
	return "header." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature"
}

func TestReadAccountToken(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	got, err := ReadAccountToken(accountToken(now, now.Add(100*time.Hour), 1) + "\n")
	want := AccountToken{Issued: now, Expires: now.Add(100 * time.Hour), Namespace: "kube-system", Account: "winkube-proxy", Node: "node1", NodeUID: "n"}
	if err != nil || got != want || !got.Due().Equal(now.Add(70*time.Hour)) {
		t.Errorf("%+v, %v", got, err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	for text, want := range map[string]string{"": "no JSON Web Token", "secret": "no JSON Web Token", "a.***.c": "not base64url", "a." + encode([]byte("[")) + ".c": "not JSON",
		"a." + encode([]byte(`{"sub":"me","exp":5}`)) + ".c": "no token of a service account", accountToken(now, now, 1): "that expires"} {
		if _, err := ReadAccountToken(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestTokenFile: a token is renewed for the same account and Node after 70 % of its lifetime, and kept if the API server refuses.
func TestTokenFile(t *testing.T) {
	clock := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
	path := filepath.Join(t.TempDir(), "proxy.token")
	if err := WriteSecret(path, accountToken(clock.Now(), clock.Now().Add(100*time.Minute), 1)); err != nil {
		t.Fatal(err)
	}
	client := clientsettest.NewClientset()
	asked, refuse := 0, false
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		if refuse {
			return true, nil, errors.New("refused")
		}
		request := action.(clienttesting.CreateAction).GetObject().(*authentication.TokenRequest)
		if to := request.Spec.BoundObjectRef; action.GetNamespace() != "kube-system" || to == nil || to.Kind != "Node" || to.Name != "node1" || to.UID != "n" {
			t.Errorf("%s: asked for %+v", action.GetNamespace(), request.Spec)
		}
		return true, &authentication.TokenRequest{Status: authentication.TokenRequestStatus{Token: accountToken(clock.Now(), clock.Now().Add(100*time.Minute), asked+1)}}, nil
	})
	f := &TokenFile{Path: path, Client: client, Clock: clock}
	step := func(wantAsked int, wantErr bool) time.Duration {
		t.Helper()
		pause, err := f.renew(context.Background())
		if asked != wantAsked || (err != nil) != wantErr {
			t.Errorf("asked %d times, %v; want %d", asked, err, wantAsked)
		}
		return pause
	}
	if pause := step(0, false); pause != longestLook {
		t.Errorf("it looks again after %s", pause)
	}
	clock.Step(69 * time.Minute)
	if pause := step(0, false); pause != time.Minute {
		t.Errorf("it looks again after %s", pause)
	}
	clock.Step(2 * time.Minute)
	refuse = true
	step(1, true)
	refuse = false
	step(2, false)
	step(2, false)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if token, err := ReadAccountToken(string(text)); err != nil || !token.Issued.Equal(clock.Now()) {
		t.Errorf("%+v, %v", token, err)
	}
	if info, err := os.Stat(path); err != nil || !private(info) {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	step(2, true)
}

// TestWithoutLinks: without symbolic links, the newest certificate is a file of the same name after each renewal, and the next program
// reads it.
func TestWithoutLinks(t *testing.T) {
	s := newSigner(t, time.Hour)
	dir := t.TempDir()
	pair, err := NewPair(PairConfig{Name: "kubelet-client", Dir: dir, Template: NodeIdentity{NodeName: "n1"}.template}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, symlink := range []func(string, string) error{
		func(string, string) error { return errors.New("a required privilege is not held by the client") },
		func(string, string) error { return nil }, // Wine
	} {
		pair.files.symlink = symlink
		if err := pair.adopt(s.pair(t)); err != nil {
			t.Fatal(err)
		}
		next, err := NewPair(pair.cfg, nil)
		if err != nil || next.Current() == nil || next.Current().Leaf.SerialNumber.Cmp(pair.Current().Leaf.SerialNumber) != 0 {
			t.Fatalf("the next program has %v, %v", next.Current(), err)
		}
	}
	if info, err := os.Lstat(pair.Path()); err != nil || !info.Mode().IsRegular() || !private(info) {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// private reports whether others cannot read a file. Windows has no mode bits for that: its directory's access list decides
// (daemon.ProtectDir).
func private(info os.FileInfo) bool { return os.PathSeparator == '\\' || info.Mode().Perm() == 0o600 }
