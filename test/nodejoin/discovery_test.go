package nodejoin

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/nodejoin/discovery"
	"github.com/winkube/winkube/test/apiserver"
)

const hashFlag = "hash"

// start returns a cluster with one token, and the hash of its CA.
func start(t *testing.T) (*apiserver.Joinable, []discovery.Pin) {
	t.Helper()
	server, err := apiserver.New(apiserver.JSON)
	if err != nil {
		t.Fatal(err)
	}
	j := apiserver.NewJoinable(t, server)
	if err := j.AddToken(goodToken); err != nil {
		t.Fatal(err)
	}
	pins, err := discovery.ParsePins(hashFlag, []string{j.Hash()})
	if err != nil {
		t.Fatal(err)
	}
	return j, pins
}

// TestFindsCluster finds a cluster, and reports the fault if it is another one.
func TestFindsCluster(t *testing.T) {
	cluster, pins := start(t)
	other, _ := start(t)
	for name, c := range map[string]struct {
		server, token string
		pins          []discovery.Pin
		want          string // of the error
	}{
		"right":                  {cluster.Address(), goodToken, pins, ""},
		"one of two hashes":      {cluster.Address(), goodToken, append([]discovery.Pin{{1}}, pins...), ""},
		"token's secret wrong":   {cluster.Address(), "abcdef.0000000000000000", pins, "--token=abcdef.****************: its second half does not fit the signature"},
		"another cluster's CA":   {other.Address(), goodToken, pins, "--hash=" + pins[0].String() + ": the cluster's CA has " + other.Hash()},
		"no API server":          {"127.0.0.1:1", goodToken, pins, "SERVER=127.0.0.1:1: no API server answers there"},
		"token of no one, or it": {cluster.Address(), "fedcba.0123456789abcdef", pins, "--token=fedcba.****************: the cluster does not know it: it has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token, err := discovery.ParseToken(c.token)
			if err != nil {
				t.Fatal(err)
			}
			found, err := discovery.Find(t.Context(), c.server, token, hashFlag, c.pins)
			switch {
			case c.want == "" && (err != nil || found.Server != cluster.URL || len(found.CA) == 0):
				t.Errorf("%+v, %v", found, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "fedcba9876543210")):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestTokenStaysHere: an API server that is not trusted never sees the token.
func TestTokenStaysHere(t *testing.T) {
	cluster, pins := start(t)
	token, err := discovery.ParseToken("abcdef.0000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := discovery.Find(t.Context(), cluster.Address(), token, hashFlag, pins); err == nil {
		t.Fatal("it was believed")
	}
	if calls := cluster.Calls(); len(calls) != 1 || !strings.HasSuffix(calls[0], "/kube-public/configmaps/cluster-info") {
		t.Errorf("it was asked %q", calls)
	}
}

// TestVerifyMalformed: a malformed ConfigMap gives one line.
func TestVerifyMalformed(t *testing.T) {
	cluster, pins := start(t)
	info := cluster.Get("/api/v1/namespaces/kube-public/configmaps/cluster-info").(*v1.ConfigMap)
	token, err := discovery.ParseToken(goodToken)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := discovery.Verify(info, token, hashFlag, pins); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string]string){
		"has no kubeconfig":    func(d map[string]string) { delete(d, "kubeconfig") },
		"does not fit":         func(d map[string]string) { d["kubeconfig"] += " " },
		"does not know it":     func(d map[string]string) { delete(d, "jws-kubeconfig-abcdef") },
		"second half does not": func(d map[string]string) { d["jws-kubeconfig-abcdef"] = "a..b" },
	} {
		changed := info.DeepCopy()
		change(changed.Data)
		if _, err := discovery.Verify(changed, token, hashFlag, pins); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, name)
		}
	}
}
