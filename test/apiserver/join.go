package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/cluster-bootstrap/token/jws"
)

// Joinable is a Server with TLS that does for new nodes what kubeadm, the API server and its controllers do. It
// publishes cluster-info to everyone, authenticates join tokens, client certificates and service account tokens, signs
// certificates, and answers access reviews.
type Joinable struct {
	*Server
	URL string
	// Signs says whether certificate requests are signed, as with kubeadm's roles, or remain pending.
	Signs bool
	// May decides SelfSubjectAccessReviews; nil: StandardRights. user is system:bootstrap:ID, system:node:NAME or
	// system:serviceaccount:NAMESPACE:NAME.
	May func(user string, what authorization.ResourceAttributes) bool
	// TokenLife is the lifetime of service account tokens.
	TokenLife time.Duration

	ca     *x509.Certificate
	caPEM  []byte
	key    *ecdsa.PrivateKey
	mu     sync.Mutex
	users  map[string]string // by bearer token
	serial int64
}

// NewJoinable serves s on loopback until the test ends, as a cluster with its own CA.
func NewJoinable(t testing.TB, s *Server) *Joinable {
	t.Helper()
	j := &Joinable{Server: s, Signs: true, TokenLife: 365 * 24 * time.Hour, users: map[string]string{}, serial: 1}
	if err := j.makeCA(); err != nil {
		t.Fatal(err)
	}
	own, err := j.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, &j.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(j.ca)
	server := httptest.NewUnstartedServer(j)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{own}, PrivateKey: j.key}}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients}
	server.Config.ErrorLog = nil
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	j.URL = server.URL
	return j
}

// Address returns the server's HOST:PORT.
func (j *Joinable) Address() string { return strings.TrimPrefix(j.URL, "https://") }

// Hash returns the hash of the CA's public key.
func (j *Joinable) Hash() string {
	sum := sha256.Sum256(j.ca.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// AddToken creates a join token, which signs cluster-info and authenticates.
func (j *Joinable) AddToken(token string) error {
	id, secret, _ := strings.Cut(token, ".")
	j.mu.Lock()
	j.users[token] = "system:bootstrap:" + id
	j.mu.Unlock()
	info, err := j.clusterInfo()
	if err != nil {
		return err
	}
	if info.Data["jws-kubeconfig-"+id], err = jws.ComputeDetachedSignature(info.Data["kubeconfig"], id, secret); err != nil {
		return err
	}
	return j.Set(info)
}

// EndToken expires a token: the controller removes its signature, and it no longer authenticates.
func (j *Joinable) EndToken(token string) error {
	id, _, _ := strings.Cut(token, ".")
	j.Forget(token)
	info, err := j.clusterInfo()
	if err != nil {
		return err
	}
	delete(info.Data, "jws-kubeconfig-"+id)
	return j.Set(info)
}

// Forget makes a token invalid for authentication.
func (j *Joinable) Forget(token string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.users, token)
}

func (j *Joinable) clusterInfo() (*v1.ConfigMap, error) {
	if have, ok := j.Get("/api/v1/namespaces/kube-public/configmaps/cluster-info").(*v1.ConfigMap); ok {
		return have.DeepCopy(), nil
	}
	file := clientcmdapi.NewConfig()
	file.Clusters[""] = &clientcmdapi.Cluster{Server: j.URL, CertificateAuthorityData: j.caPEM}
	text, err := clientcmd.Write(*file)
	return &v1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "cluster-info", Namespace: "kube-public"},
		Data: map[string]string{"kubeconfig": string(text)}}, err
}

func (j *Joinable) makeCA() (err error) {
	if j.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &j.key.PublicKey, j.key)
	if err != nil {
		return err
	}
	j.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	j.ca, err = x509.ParseCertificate(der)
	return err
}

func (j *Joinable) sign(template *x509.Certificate, key any) ([]byte, error) {
	j.mu.Lock()
	j.serial++
	template.SerialNumber = big.NewInt(j.serial)
	j.mu.Unlock()
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	return x509.CreateCertificate(rand.Reader, template, j.ca, key, j.key)
}

// userOf returns the user of a request; "": anonymous. ok false: wrong credentials.
func (j *Joinable) userOf(r *http.Request) (user string, ok bool) {
	if bearer, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); found {
		j.mu.Lock()
		defer j.mu.Unlock()
		user, ok = j.users[bearer]
		return user, ok
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName, true
	}
	return "", true
}

// ServeHTTP implements http.Handler.
func (j *Joinable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, ok := j.userOf(r)
	public := strings.HasSuffix(r.URL.Path, "/kube-public/configmaps/cluster-info") || r.URL.Path == "/version"
	if !ok || user == "" && !public {
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	kind := ""
	switch {
	case r.Method != http.MethodPost:
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"), strings.HasSuffix(r.URL.Path, "/certificatesigningrequests"), strings.HasSuffix(r.URL.Path, "/token"):
		kind = r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	}
	if kind == "" {
		j.Server.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err == nil {
		j.Server.mu.Lock()
		j.calls = append(j.calls, r.Method+" "+r.URL.String())
		j.Server.mu.Unlock()
		err = j.answerPost(user, r.URL.Path, object)
	}
	if err != nil {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
		return
	}
	data, err := j.encode(object)
	if err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	j.answer(w, http.StatusCreated, data)
}

// answerPost fills in the fields that the API server decides.
func (j *Joinable) answerPost(user, path string, object runtime.Object) error {
	switch o := object.(type) {
	case *authorization.SelfSubjectAccessReview:
		if o.Spec.ResourceAttributes == nil {
			return errors.New("no resource")
		}
		may := j.May
		if may == nil {
			may = StandardRights
		}
		o.Status.Allowed = may(user, *o.Spec.ResourceAttributes)
	case *authentication.TokenRequest:
		parts := strings.Split(path, "/") // /api/v1/namespaces/NS/serviceaccounts/NAME/token
		return j.issue(o, parts[4], parts[6])
	case *certificates.CertificateSigningRequest:
		return j.certify(o)
	}
	return nil
}

// StandardRights grants the rights of kubeadm's join tokens with node-join.yaml, and of that manifest's service
// account.
func StandardRights(user string, what authorization.ResourceAttributes) bool {
	switch {
	case strings.HasPrefix(user, "system:bootstrap:"):
		return what.Verb == "create" && (what.Resource == "certificatesigningrequests" || what.Resource == "serviceaccounts" && what.Subresource == "token" && what.Name == "winkube-proxy") ||
			what.Verb == "get" && what.Resource == "nodes"
	case strings.HasPrefix(user, "system:serviceaccount:"):
		return what.Verb == "watch" && (what.Resource == "endpointslices" || what.Resource == "services" || what.Resource == "nodes")
	}
	return what.Verb == "watch" && what.Resource == "services"
}

func (j *Joinable) certify(o *certificates.CertificateSigningRequest) error {
	j.mu.Lock()
	j.serial++
	o.Name = fmt.Sprintf("csr-%d", j.serial)
	j.mu.Unlock()
	o.UID = types.UID("uid-of-" + o.Name)
	block, _ := pem.Decode(o.Spec.Request)
	if block == nil {
		return errors.New("the request is not PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	if j.Signs {
		der, err := j.sign(&x509.Certificate{Subject: request.Subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, request.PublicKey)
		if err != nil {
			return err
		}
		o.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		o.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: v1.ConditionTrue, Reason: "AutoApproved"}}
	}
	return j.Set(o)
}

// issue creates a service account token. It must be bound to an existing Node, as the policy in node-join.yaml
// requires.
func (j *Joinable) issue(o *authentication.TokenRequest, namespace, account string) error {
	to := o.Spec.BoundObjectRef
	if to == nil || to.Kind != "Node" {
		return errors.New("a token of winkube-proxy must be bound to a Node")
	}
	node, ok := j.Get("/api/v1/nodes/" + to.Name).(*v1.Node)
	if !ok || node.UID != to.UID {
		return fmt.Errorf("no Node %s with UID %s", to.Name, to.UID)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.serial++
	now := time.Now()
	claims, err := json.Marshal(map[string]any{"iat": now.Unix(), "exp": now.Add(j.TokenLife).Unix(), "jti": j.serial, "kubernetes.io": map[string]any{"namespace": namespace,
		"serviceaccount": map[string]string{"name": account}, "node": map[string]string{"name": to.Name, "uid": string(to.UID)}}})
	if err != nil {
		return err
	}
	text := base64.RawURLEncoding.EncodeToString
	o.Status.Token = text([]byte(`{"alg":"RS256"}`)) + "." + text(claims) + "." + text([]byte("signature"))
	o.Status.ExpirationTimestamp = metav1.NewTime(now.Add(j.TokenLife))
	j.users[o.Status.Token] = "system:serviceaccount:" + namespace + ":" + account
	return nil
}
