package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// selfSignedMargin is how long a self-signed certificate of an earlier start must still be valid to be reused.
const selfSignedMargin = 30 * 24 * time.Hour

// reloader caches the parsed content of some files and reloads it when they change. It checks them at each use, which is once per handshake; no
// goroutine runs in between.
type reloader[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)

	mu    sync.Mutex
	value T
	infos []os.FileInfo
	tried []os.FileInfo // of the last failed attempt, so that it is logged once
}

func newReloader[T any](parse func([][]byte) (T, error), paths ...string) (*reloader[T], error) {
	r := &reloader[T]{paths: paths, parse: parse}
	infos, err := r.stat()
	if err != nil {
		return nil, err
	}
	return r, r.load(infos)
}

// get returns the newest valid value.
func (r *reloader[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	infos, err := r.stat()
	if err != nil || same(infos, r.infos) {
		return r.value // a file that is briefly missing is about to be replaced
	}
	if err := r.load(infos); err != nil && !same(infos, r.tried) {
		klog.ErrorS(err, "Cannot reload files; using their previous contents", "files", r.paths)
		r.tried = infos
	}
	return r.value
}

func (r *reloader[T]) stat() ([]os.FileInfo, error) {
	infos := make([]os.FileInfo, len(r.paths))
	for i, path := range r.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		infos[i] = info
	}
	return infos, nil
}

// load stores infos, taken before reading: a file that changes meanwhile is read again next time.
func (r *reloader[T]) load(infos []os.FileInfo) error {
	contents := make([][]byte, len(r.paths))
	for i, path := range r.paths {
		var err error
		if contents[i], err = os.ReadFile(path); err != nil {
			return err
		}
	}
	value, err := r.parse(contents)
	if err != nil {
		return fmt.Errorf("cannot parse %q: %w", r.paths, err)
	}
	if r.infos != nil {
		klog.InfoS("Reloaded", "files", r.paths)
	}
	r.value, r.infos = value, infos
	return nil
}

func same(a, b []os.FileInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}

func parsePool(contents [][]byte) (*x509.CertPool, error) {
	return certutil.NewPoolFromBytes(contents[0])
}

func parsePair(contents [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	return &pair, err
}

type getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// newTLSConfig requests a client certificate if clientCA is set, and leaves its verification to the authenticator, which can answer 401 or try the
// next credential.
func newTLSConfig(config TLS, node string, get getCertificate, clientCA *reloader[*x509.CertPool], clock clock.PassiveClock) (*tls.Config, error) {
	if get == nil {
		certFile, keyFile := config.CertFile, config.KeyFile
		if (certFile == "") != (keyFile == "") {
			return nil, fmt.Errorf("tlsCertFile is %q and tlsPrivateKeyFile is %q: set both or none", certFile, keyFile)
		}
		own := certFile == ""
		if own {
			var err error
			if certFile, keyFile, err = selfSigned(config.CertDir, node, clock.Now()); err != nil {
				return nil, err
			}
		}
		pair, err := newReloader(parsePair, certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot use the serving certificate (tlsCertFile, tlsPrivateKeyFile): %w", err)
		}
		get = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get(), nil }
		if own {
			get = renewing(pair, config.CertDir, node, clock)
		}
	}
	base := &tls.Config{
		MinVersion:       max(config.MinVersion, tls.VersionTLS12),
		CipherSuites:     config.CipherSuites,
		CurvePreferences: config.Curves,
		GetCertificate:   get,
		NextProtos:       []string{"h2", "http/1.1"},
	}
	if suites := config.CipherSuites; suites != nil && base.MinVersion < tls.VersionTLS13 &&
		!slices.Contains(suites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) && !slices.Contains(suites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) {
		base.NextProtos = []string{"http/1.1"} // net/http refuses to start HTTP/2 without these (RFC 9113, 9.2.2)
	}
	if clientCA != nil {
		base.ClientAuth = tls.RequestClientCert
		base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			today := base.Clone()
			today.GetConfigForClient = nil
			today.ClientCAs = clientCA.get() // helps the client choose its certificate
			return today, nil
		}
	}
	return base, nil
}

// renewing returns a self-signed certificate, replaced before it expires.
func renewing(pair *reloader[*tls.Certificate], dir, node string, clock clock.PassiveClock) getCertificate {
	var mu sync.Mutex
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		current := pair.get()
		if now := clock.Now(); now.Add(selfSignedMargin).After(current.Leaf.NotAfter) {
			if _, _, err := selfSigned(dir, node, now); err != nil {
				klog.ErrorS(err, "Cannot renew the self-signed serving certificate")
				return current, nil
			}
			current = pair.get()
		}
		return current, nil
	}
}

// selfSigned returns the files of a self-signed serving certificate in dir, created now unless an existing one is valid for long enough. Clients that
// verify this server need a real certificate.
func selfSigned(dir, host string, now time.Time) (certFile, keyFile string, err error) {
	if dir == "" {
		return "", "", errors.New("no serving certificate: set tlsCertFile and tlsPrivateKeyFile, or --cert-dir for a self-signed one")
	}
	certFile, keyFile = filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
	if pair, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil && now.Add(selfSignedMargin).Before(pair.Leaf.NotAfter) {
		return certFile, keyFile, nil
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return "", "", fmt.Errorf("cannot make a self-signed certificate for %q: %w", host, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", fmt.Errorf("cannot make --cert-dir: %w", err)
	}
	for _, file := range []struct {
		path string
		data []byte
		mode os.FileMode
	}{{keyFile, key, 0o600}, {certFile, cert, 0o644}} {
		if err := replaceFile(file.path, file.data, file.mode); err != nil {
			return "", "", fmt.Errorf("cannot write the self-signed certificate: %w", err)
		}
	}
	klog.InfoS("Made a self-signed serving certificate", "file", certFile)
	return certFile, keyFile, nil
}

// replaceFile replaces path atomically: readers see the old or the new content. mode applies from the first byte.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	temp := path + ".new"
	_ = os.Remove(temp) // left by an interrupted start; its mode would be kept
	err := os.WriteFile(temp, data, mode)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // on a full disk a partial file uses the space of a whole one
	}
	return err
}
