// Package discovery finds a cluster from kubeadm's data for new nodes: the address of an API server, a join token and the hash of the CA's public key.
//
//	SERVER --ConfigMap kube-public/cluster-info, untrusted--> Verify (JWS by the token, CA by its hash) --again, with that CA--> Cluster
//
// The token never leaves this host before the API server has shown a certificate of that CA.
package discovery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
)

// Token is a join token.
type Token struct {
	ID     string
	secret string
}

var tokenForm = regexp.MustCompile(bootstrap.BootstrapTokenPattern)

// ParseToken parses ID.SECRET. The error does not contain the secret.
func ParseToken(text string) (Token, error) {
	m := tokenForm.FindStringSubmatch(text)
	switch {
	case m == nil && strings.HasPrefix(text, "K10"): // https://docs.k3s.io/cli/token
		return Token{}, fmt.Errorf("--token: %d characters of a token of k3s or RKE2, which is for their own agents; want credentials from their cluster: --kubeconfig and --proxy-kubeconfig", len(text))
	case m == nil:
		return Token{}, fmt.Errorf("--token: %d characters that are not a join token; want one such as abcdef.0123456789abcdef, as `kubeadm token create` prints it", len(text))
	}
	return Token{ID: m[1], secret: m[2]}, nil
}

// Bearer is the token in the form that the API server accepts.
func (t Token) Bearer() string { return t.ID + "." + t.secret }

// String omits the secret.
func (t Token) String() string { return t.ID + ".****************" }

// GoString omits it too.
func (t Token) GoString() string { return t.String() }

// Pin is the SHA-256 hash of a CA's public key.
type Pin [sha256.Size]byte

func (p Pin) String() string { return "sha256:" + hex.EncodeToString(p[:]) }

// ParsePins parses hashes of the form sha256:HEX. At least one is required.
func ParsePins(flag string, list []string) ([]Pin, error) {
	const want = "want sha256: and 64 hexadecimal digits, as `kubeadm token create --print-join-command` prints it"
	if len(list) == 0 {
		return nil, fmt.Errorf("--%s is missing: without it another host could pretend to be the API server; %s", flag, want)
	}
	var pins []Pin
	for _, text := range list {
		kind, digits, _ := strings.Cut(text, ":")
		data, err := hex.DecodeString(digits)
		if err != nil || len(data) != sha256.Size || !strings.EqualFold(kind, "sha256") {
			return nil, fmt.Errorf("--%s=%s: %s", flag, text, want)
		}
		pins = append(pins, Pin(data))
	}
	return pins, nil
}

// PinOf returns the hash of a certificate's key.
func PinOf(cert *x509.Certificate) Pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// ParseServer parses HOST:PORT; the default port is 6443, as in kubeadm.
func ParseServer(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "6443"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 || host == "" || strings.ContainsAny(host, "/ @?#[]") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return "", fmt.Errorf("SERVER %q: want host:port of the API server, such as 10.0.0.1:6443", text)
	}
	return net.JoinHostPort(host, port), nil
}

// Cluster is verified data about a cluster.
type Cluster struct {
	Server string // URL
	CA     []byte // PEM
}

// Errors of Verify and Find that callers distinguish.
var (
	// ErrNotSigned says that the cluster currently has no token with this ID.
	ErrNotSigned = errors.New("the cluster does not know it")
)

// Verify checks that a ConfigMap cluster-info is from the cluster that issued token, and that it has one of the CAs. It is pure.
func Verify(info *v1.ConfigMap, token Token, flag string, pins []Pin) (Cluster, error) {
	text := info.Data[bootstrap.KubeConfigKey]
	if text == "" {
		return Cluster{}, errors.New("ConfigMap kube-public/cluster-info has no kubeconfig: this cluster has no join tokens; run `kubeadm init phase bootstrap-token` there, or give --kubeconfig here")
	}
	signature := info.Data[bootstrap.JWSSignatureKeyPrefix+token.ID]
	switch {
	case signature == "":
		return Cluster{}, fmt.Errorf("--token=%s: %w: it has expired, or was made for another cluster; create a new one with `kubeadm token create`", token, ErrNotSigned)
	case !jws.DetachedTokenIsValid(signature, text, token.ID, token.secret):
		return Cluster{}, fmt.Errorf("--token=%s: its second half does not fit the signature in ConfigMap kube-public/cluster-info: the token is mistyped, or this is not the cluster that made it; create a new one with `kubeadm token create`", token)
	}
	file, err := clientcmd.Load([]byte(text))
	if err != nil {
		return Cluster{}, fmt.Errorf("ConfigMap kube-public/cluster-info has an unreadable kubeconfig: %w", err)
	}
	cluster, err := only(file)
	if err != nil {
		return Cluster{}, err
	}
	return cluster, fits(cluster.CA, flag, pins)
}

// only returns the single cluster in the kubeconfig of cluster-info, which kubeadm writes without users and contexts.
func only(file *clientcmdapi.Config) (Cluster, error) {
	if len(file.Clusters) != 1 {
		return Cluster{}, fmt.Errorf("the kubeconfig of ConfigMap kube-public/cluster-info has %d clusters, want one", len(file.Clusters))
	}
	for _, c := range file.Clusters {
		if !strings.HasPrefix(c.Server, "https://") {
			return Cluster{}, fmt.Errorf("the kubeconfig of ConfigMap kube-public/cluster-info names server %q, want an https URL", c.Server)
		}
		return Cluster{Server: c.Server, CA: c.CertificateAuthorityData}, nil
	}
	return Cluster{}, nil
}

// fits looks for a pin among the CAs.
func fits(ca []byte, flag string, pins []Pin) error {
	certs, err := certutil.ParseCertsPEM(ca)
	if err != nil {
		return fmt.Errorf("the kubeconfig of ConfigMap kube-public/cluster-info has no readable CA: %w", err)
	}
	var have []string
	for _, cert := range certs {
		if slices.Contains(pins, PinOf(cert)) {
			return nil
		}
		have = append(have, PinOf(cert).String())
	}
	return fmt.Errorf("--%s=%s: the cluster's CA has %s; this is another cluster, or another host pretends to be it", flag, pins[0], strings.Join(have, ", "))
}

// Times of Find: a new token is signed shortly after its creation.
const (
	answerPatience = 10 * time.Second
	signPatience   = 5 * time.Second
	signPause      = 500 * time.Millisecond
	largest        = 1 << 20
)

// Find gets the cluster from the API server at server, HOST:PORT, and verifies it. flag is the name of the pins' flag.
func Find(ctx context.Context, server string, token Token, flag string, pins []Pin) (Cluster, error) {
	//nolint:gosec // Verify decides what of the answer is believed, and what follows is asked again by the CA
	first := &tls.Config{InsecureSkipVerify: true}
	cluster, text, err := ask(ctx, server, first, token, flag, pins)
	for end := time.Now().Add(signPatience); errors.Is(err, ErrNotSigned) && time.Now().Before(end) && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-time.After(signPause):
		}
		cluster, text, err = ask(ctx, server, first, token, flag, pins)
	}
	if err != nil {
		return Cluster{}, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cluster.CA)
	again, same, err := ask(ctx, server, &tls.Config{RootCAs: roots}, token, flag, pins)
	switch {
	case err != nil:
		return Cluster{}, fmt.Errorf("SERVER=%s does not show a certificate of the cluster's CA: %w", server, err)
	case !bytes.Equal(text, same):
		return Cluster{}, fmt.Errorf("SERVER=%s gives another cluster-info over a connection that is verified; want a direct connection to the API server", server)
	}
	return again, nil
}

// ask reads the ConfigMap over a connection with config, and verifies it.
func ask(ctx context.Context, server string, config *tls.Config, token Token, flag string, pins []Pin) (Cluster, []byte, error) {
	config.MinVersion = tls.VersionTLS12
	transport := &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: answerPatience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	url := "https://" + server + "/api/v1/namespaces/kube-public/configmaps/" + bootstrap.ConfigMapClusterInfo
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Cluster{}, nil, fmt.Errorf("SERVER=%s: %w", server, err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return Cluster{}, nil, fmt.Errorf("SERVER=%s: no API server answers there: %w", server, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, largest))
	info := &v1.ConfigMap{}
	switch {
	case response.StatusCode != http.StatusOK:
		return Cluster{}, nil, fmt.Errorf("SERVER=%s: it answers %s for ConfigMap kube-public/cluster-info; want an API server that lets new nodes read it, as kubeadm sets it up, or --kubeconfig", server, response.Status)
	case err != nil:
		return Cluster{}, nil, fmt.Errorf("SERVER=%s: %w", server, err)
	}
	if err := json.Unmarshal(data, info); err != nil {
		return Cluster{}, nil, fmt.Errorf("SERVER=%s: its answer is not a ConfigMap: %w", server, err)
	}
	cluster, err := Verify(info, token, flag, pins)
	return cluster, []byte(info.Data[bootstrap.KubeConfigKey]), err
}
