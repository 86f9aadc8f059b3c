package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/asn1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	anonymousUser        = "system:anonymous"
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	credentialID         = "authentication.kubernetes.io/credential-id"

	defaultTokenTTL = 2 * time.Minute
	badTokenTTL     = 10 * time.Second // for a client that repeats a request; short enough for a token that is not known everywhere yet
	maxToken        = 16 << 10         // bytes. The only check of a token's form: a webhook may accept any
)

// identity is the sender of a request, in RBAC's terms.
type identity struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// authenticator identifies the sender of a request: by client certificate first, then bearer token, then, if allowed, as the anonymous user.
type authenticator struct {
	clientCA  *reloader[*x509.CertPool] // nil: no client certificates
	reviews   TokenReviewer             // nil: no tokens
	anonymous bool
	ttl       time.Duration
	key       []byte // HMAC key of this process; the tokens themselves are not stored
	tokens    *memo[*identity]
	// A client's first request waits in a separate queue from those of known clients.
	strangers, regulars *turns
	wasGood             *cache.LRUExpireCache // keys of tokens
	clock               clock.PassiveClock
}

func newAuthenticator(config Authentication, reviews TokenReviewer, clock clock.PassiveClock) (*authenticator, error) {
	a := &authenticator{
		anonymous: config.Anonymous, ttl: config.CacheTTL, key: make([]byte, sha256.Size), tokens: newMemo[*identity](clock), clock: clock,
		strangers: newTurns(strangerTurns), regulars: newTurns(regularTurns), wasGood: cache.NewLRUExpireCacheWithClock(regularEntries, clock),
	}
	if a.ttl == 0 {
		a.ttl = defaultTokenTTL
	}
	_, _ = rand.Read(a.key) // never fails
	if config.Webhook {
		if reviews == nil {
			return nil, errors.New("cannot use authentication.webhook.enabled: no API server is configured; set --kubeconfig or turn it off")
		}
		a.reviews = reviews
	}
	if config.ClientCAFile != "" {
		var err error
		if a.clientCA, err = newReloader(parsePool, config.ClientCAFile); err != nil {
			return nil, fmt.Errorf("cannot use authentication.x509.clientCAFile: %w", err)
		}
	}
	if a.clientCA == nil && a.reviews == nil && !a.anonymous {
		return nil, errors.New("cannot authenticate clients: set authentication.x509.clientCAFile, authentication.webhook.enabled or authentication.anonymous.enabled")
	}
	return a, nil
}

// authenticate returns the sender of r, or nil if unknown. An invalid credential is an error even if anonymous requests are allowed. It removes an
// accepted token from r, so that no later code can leak or store it.
func (a *authenticator) authenticate(r *http.Request) (*identity, error) {
	who, certErr := a.byCertificate(r)
	var tokenErr error
	if who == nil {
		who, tokenErr = a.byToken(r)
	}
	switch {
	case who != nil:
		if who.Name != anonymousUser && !slices.Contains(who.Groups, authenticatedGroup) && !slices.Contains(who.Groups, unauthenticatedGroup) {
			known := *who // the cache may share who
			known.Groups = append(slices.Clone(who.Groups), authenticatedGroup)
			who = &known
		}
		return who, nil
	case certErr != nil || tokenErr != nil:
		return nil, errors.Join(certErr, tokenErr)
	case a.anonymous:
		return &identity{Name: anonymousUser, Groups: []string{unauthenticatedGroup}}, nil
	}
	return nil, nil
}

// byCertificate verifies the client's certificate against the current client CA: an older handshake proves nothing.
func (a *authenticator) byCertificate(r *http.Request) (*identity, error) {
	if a.clientCA == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	options := x509.VerifyOptions{
		Roots:         a.clientCA.get(),
		Intermediates: x509.NewCertPool(),
		CurrentTime:   a.clock.Now(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, cert := range r.TLS.PeerCertificates[1:] {
		options.Intermediates.AddCert(cert)
	}
	leaf := r.TLS.PeerCertificates[0]
	if _, err := leaf.Verify(options); err != nil {
		return nil, fmt.Errorf("cannot verify client certificate %q, serial %d: %w", leaf.Subject, leaf.SerialNumber, err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, nil
	}
	uid, err := certificateUID(leaf)
	if err != nil {
		return nil, err
	}
	print := sha256.Sum256(leaf.Raw)
	return &identity{
		Name:   leaf.Subject.CommonName,
		UID:    uid,
		Groups: leaf.Subject.Organization,
		Extra:  map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(print[:])}},
	}, nil
}

// certificateUID reads Kubernetes' attribute of a subject, which may occur only once.
func certificateUID(cert *x509.Certificate) (string, error) {
	uid, found := "", false
	for _, name := range cert.Subject.Names {
		if !name.Type.Equal(asn1.X509UID()) {
			continue
		}
		value, ok := name.Value.(string)
		if !ok || value == "" || found {
			return "", fmt.Errorf("client certificate %q has a bad UID attribute: want one non-empty string", cert.Subject)
		}
		uid, found = value, true
	}
	return uid, nil
}

func (a *authenticator) byToken(r *http.Request) (*identity, error) {
	token := bearerToken(r.Header.Get("Authorization"))
	if a.reviews == nil || token == "" {
		return nil, nil
	}
	if len(token) > maxToken {
		return nil, fmt.Errorf("the bearer token has %d bytes, want at most %d", len(token), maxToken)
	}
	sum := hmac.New(sha256.New, a.key)
	sum.Write([]byte(token))
	key, client := string(sum.Sum(nil)), visitorOf(r.Context())
	got, err := a.tokens.get(r.Context(), key, a.asker(r, key, client), func(ctx context.Context) (answer[*identity], error) {
		return a.review(ctx, token)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot review a bearer token: %w", err)
	}
	client.known.Store(got.good)
	if !got.good {
		a.wasGood.Remove(key)
		return nil, errors.New("invalid bearer token")
	}
	a.wasGood.Add(key, nil, regularTTL)
	r.Header.Del("Authorization")
	return got.value, nil
}

// asker says where a question about a token waits. Tokens that were accepted before, and connections whose last token was, do not wait among the many
// that anyone may send; a rejection ends that.
func (a *authenticator) asker(r *http.Request, key string, client *visitor) asker {
	source := sourceOf(r.RemoteAddr)
	if _, was := a.wasGood.Get(key); was || client.known.Load() {
		return asker{a.regulars, source, &client.regular}
	}
	return asker{a.strangers, source, &client.stranger}
}

// review asks the API server who owns a token.
func (a *authenticator) review(ctx context.Context, token string) (answer[*identity], error) {
	review, err := a.reviews.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return answer[*identity]{}, err
	}
	if !review.Status.Authenticated {
		return answer[*identity]{holds: min(badTokenTTL, a.ttl)}, nil
	}
	user := review.Status.User
	who := &identity{Name: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string][]string{}}
	for key, values := range user.Extra {
		who.Extra[key] = values
	}
	return answer[*identity]{value: who, good: true, holds: a.ttl}, nil
}

// bearerToken is the token of an Authorization header, or "" (RFC 6750).
func bearerToken(header string) string {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	token, _, _ := strings.Cut(rest, " ")
	return token
}
