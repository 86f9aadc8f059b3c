package kubeclient

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/winkube/winkube/pkg/clientset"
)

// apiServer is an API server that records each path's last connection and certificate, and the open connections.
type apiServer struct {
	*httptest.Server
	mu     sync.Mutex
	by     map[string]string // path -> the client's end of the connection
	serial map[string]int64  // path -> certificate
	open   map[string]bool
	closed *sync.Cond
	hang   string // requests of this path get no response
}

func newAPIServer(t *testing.T) *apiServer {
	w := &apiServer{by: map[string]string{}, serial: map[string]int64{}, open: map[string]bool{}}
	w.closed = sync.NewCond(&w.mu)
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.by[r.URL.Path] = r.RemoteAddr
		if len(r.TLS.PeerCertificates) > 0 {
			w.serial[r.URL.Path] = r.TLS.PeerCertificates[0].SerialNumber.Int64()
		}
		hang := r.URL.Path == w.hang
		w.mu.Unlock()
		if hang {
			<-r.Context().Done()
			return
		}
		out.Header().Set("Content-Type", "application/json")
		_, _ = out.Write([]byte(`{}`))
	}))
	w.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	w.EnableHTTP2 = true
	w.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if state == http.StateClosed {
			delete(w.open, conn.RemoteAddr().String())
			w.closed.Broadcast()
		} else {
			w.open[conn.RemoteAddr().String()] = true
		}
	}
	w.StartTLS()
	t.Cleanup(w.Close)
	return w
}

const (
	podPath    = "/api/v1/namespaces/default/pods/p"
	eventPath  = "/api/v1/namespaces/default/events/e"
	leasePath  = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"
	reviewPath = "/apis/authentication.k8s.io/v1/tokenreviews"
)

// ask makes one request of each kind.
func ask(ctx context.Context, clients Clients, except string) error {
	var errs []error
	for path, request := range map[string]func() error{
		podPath: func() error {
			_, err := clients.Main.Pods("default").Get(ctx, "p", metav1.GetOptions{})
			return err
		},
		eventPath: func() error {
			_, err := clients.Events.Events("default").Get(ctx, "e", metav1.GetOptions{})
			return err
		},
		leasePath: func() error {
			_, err := clients.Heartbeat.Leases("kube-node-lease").Get(ctx, "n", metav1.GetOptions{})
			return err
		},
		reviewPath: func() error {
			_, err := clients.Reviews.TokenReviews().Create(ctx, &authenticationv1.TokenReview{}, metav1.CreateOptions{})
			return err
		},
	} {
		if path != except {
			errs = append(errs, request())
		}
	}
	return errors.Join(errs...)
}

// connections are those of Main, Heartbeat and Reviews. It checks that they differ and that Events use Main's.
func (w *apiServer) connections(t *testing.T) map[string]bool {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[podPath] != w.by[eventPath] {
		t.Errorf("Events have a separate connection, beside that of the other requests: %v", w.by)
	}
	all := map[string]bool{w.by[podPath]: true, w.by[leasePath]: true, w.by[reviewPath]: true}
	if len(all) != 3 {
		t.Errorf("connections are shared: %v", w.by)
	}
	return all
}

// TestClientsApart: neither an exhausted limit nor a silent connection delays a Lease or a review.
func TestClientsApart(t *testing.T) {
	w := newAPIServer(t)
	config := &rest.Config{Host: w.URL, BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 0.0001, Burst: 1}
	clients, err := NewClients(config, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(t.Context(), clients, ""); err != nil {
		t.Fatal(err)
	}
	w.connections(t)
	within, cancel := context.WithTimeout(t.Context(), time.Minute) // less than the limit's wait, so that it fails immediately
	defer cancel()
	if _, err := clients.Main.Pods("default").Get(within, "p", metav1.GetOptions{}); err == nil {
		t.Fatal("the limit of reads is not used up")
	}
	for range 20 {
		if err := ask(t.Context(), clients, podPath); err != nil {
			t.Error(err)
		}
	}

	w.mu.Lock()
	w.hang = leasePath
	w.mu.Unlock()
	if clients, err = NewClients(config, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := clients.Heartbeat.Leases("kube-node-lease").Get(t.Context(), "n", metav1.GetOptions{}); err == nil {
		t.Error("a Lease that is not answered was not given up")
	}
}

// TestClientsRotate: all clients use the new certificate from then on, and no old connection stays open.
func TestClientsRotate(t *testing.T) {
	api, w, dir := newSigner(t, time.Hour), newAPIServer(t), t.TempDir()
	node := NodeIdentity{NodeName: "n1", Kubeconfig: filepath.Join(dir, "kubelet.conf"), CertDir: dir}
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: w.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})}
	file.Contexts["x"], file.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	ours := func(bool) (clientset.Interface, error) { return api, nil }
	first, err := node.pair(ours, nil, nil)
	if err == nil {
		err = first.Renew(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificate: first.Path(), ClientKey: first.Path()}
	if err := clientcmd.WriteToFile(*file, node.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	config, err := Config(Options{Kubeconfig: node.Kubeconfig, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	config, pair, err := node.Rotating(config)
	if err != nil {
		t.Fatal(err)
	}
	pair.cfg.Client = ours
	clients, err := NewClients(config, time.Minute)
	if err == nil {
		err = ask(t.Context(), clients, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	before := w.connections(t)
	for generation := int64(3); generation < 6; generation++ {
		if err := pair.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := ask(t.Context(), clients, ""); err != nil {
			t.Fatal(err)
		}
		after := w.connections(t)
		w.mu.Lock()
		for path, serial := range w.serial {
			if serial != generation {
				t.Errorf("%s was asked with certificate %d, want %d", path, serial, generation)
			}
		}
		for old := range before {
			for w.open[old] { // the test's own timeout ends this
				w.closed.Wait()
			}
		}
		w.mu.Unlock()
		before = after
	}
}
