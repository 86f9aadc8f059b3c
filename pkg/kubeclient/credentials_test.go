package kubeclient

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/clientset"
)

// pluginVariable in the environment makes TestExecPlugin a credential plugin.
const pluginVariable = "WINKUBE_TEST_PLUGIN"

// TestExecPlugin is not a test: when TestCredentials runs this program again, it acts as a kubeconfig's exec plugin.
func TestExecPlugin(t *testing.T) {
	if os.Getenv(pluginVariable) == "" {
		t.Skip("only as a plugin of TestCredentials")
	}
	fmt.Println(`{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "by-plugin"}}`)
	os.Exit(0)
}

// tunnel is a proxy that reports each client's password before it forwards anything.
func tunnel(t *testing.T, passwords chan<- string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		passwords <- r.Header.Get("Proxy-Authorization")
		server, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		go func() {
			_, _ = io.Copy(server, buffered)
			server.Close()
		}()
		_, _ = io.Copy(client, server)
	})
}

// TestCredentials: every kind of credential in a kubeconfig reaches the server, even through a proxy with a password.
func TestCredentials(t *testing.T) {
	got := make(chan string, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.3"}`))
	}))
	defer server.Close()
	passwords := make(chan string, 1)
	proxy := httptest.NewServer(tunnel(t, passwords))
	defer proxy.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.ToSlash(path)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	at := "insecure-skip-tls-verify: true, server: '" + server.URL + "'"
	plugin := fmt.Sprintf("exec: {apiVersion: client.authentication.k8s.io/v1, command: '%s', args: [-test.run=^TestExecPlugin$], env: [{name: %s, value: '1'}], interactiveMode: Never}",
		filepath.ToSlash(self), pluginVariable)
	for name, c := range map[string]struct {
		cluster, user, want string
		password            string // for the proxy; "": not required
	}{
		"token":      {at, "token: by-token", "Bearer by-token", ""},
		"token file": {at, "tokenFile: '" + write("token", "by-file\n") + "'", "Bearer by-file", ""},
		"plugin":     {at, plugin, "Bearer by-plugin", ""},
		"basic":      {at, "username: me, password: secret", "Basic bWU6c2VjcmV0", ""},
		"proxy": {at + ", proxy-url: '" + strings.Replace(proxy.URL, "http://", "http://me:secret@", 1) + "'", "token: by-token",
			"Bearer by-token", "Basic bWU6c2VjcmV0"},
	} {
		path := write("kubeconfig", fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {%s}}], users: [{name: u, user: {%s}}], "+
			"contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}", c.cluster, c.user))
		config, err := Config(Options{Kubeconfig: path})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		client, err := clientset.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.ServerVersion(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := <-got; got != c.want {
			t.Errorf("%s: the server got %q, want %q", name, got, c.want)
		}
		password := ""
		select {
		case password = <-passwords:
		default:
		}
		if password != c.password {
			t.Errorf("%s: the proxy got %q, want %q", name, password, c.password)
		}
	}
}
