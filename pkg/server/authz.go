package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	defaultAuthorizedTTL   = 5 * time.Minute
	defaultUnauthorizedTTL = 30 * time.Second
)

// verbs are the API verbs of HTTP methods. Any other method has the verb "", which only a role with "*" allows.
var verbs = map[string]string{
	http.MethodPost:   "create",
	http.MethodGet:    "get",
	http.MethodPut:    "update",
	http.MethodPatch:  "patch",
	http.MethodDelete: "delete",
}

// subresources are the subresources of nodes that give access to a path, by its first segment; one of them is enough. Every other path
// needs nodes/proxy. (KEP-2862; the spelling "log" matches pods/log.)
var subresources = map[string][]string{
	"checkpoint":  {"checkpoint"},
	"configz":     {"configz", "proxy"},
	"flagz":       {"configz"},
	"healthz":     {"healthz", "proxy"},
	"logs":        {"log"},
	"metrics":     {"metrics"},
	"pods":        {"pods", "proxy"},
	"runningpods": {"pods", "proxy"},
	"stats":       {"stats"},
	"statusz":     {"statusz"},
}

// intoPods are the first segments of paths that run commands in pods or connect to them. They need the verb "create" with every method: a
// WebSocket starts with GET, and whoever may read must not execute. (Upstream's kubelet asks for "get" then.)
var intoPods = map[string]bool{"attach": true, "exec": true, "portForward": true, "run": true}

// attributes maps a request to the permission that it needs on this node: verb, and one of subs. It is pure.
func attributes(method, path string) (verb string, subs []string) {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if subs = subresources[first]; subs == nil || !strings.HasPrefix(path, "/") {
		subs = []string{"proxy"}
	}
	if intoPods[first] && strings.HasPrefix(path, "/") {
		return "create", subs
	}
	return verbs[method], subs
}

// authorizer decides whether an identity may do something on this node.
type authorizer struct {
	reviews         AccessReviewer // nil: everything is allowed
	node            string
	allowed, denied time.Duration
	answers         *memo[struct{}]
	turns           *turns
}

func newAuthorizer(config Authorization, node string, reviews AccessReviewer, clock clock.PassiveClock) (*authorizer, error) {
	a := &authorizer{node: node, allowed: config.AuthorizedTTL, denied: config.UnauthorizedTTL, answers: newMemo[struct{}](clock), turns: newTurns(accessTurns)}
	if a.allowed == 0 {
		a.allowed = defaultAuthorizedTTL
	}
	if a.denied == 0 {
		a.denied = defaultUnauthorizedTTL
	}
	switch config.Mode {
	case AlwaysAllow:
		return a, nil
	case Webhook, "":
		if reviews == nil {
			return nil, errors.New("cannot use authorization.mode Webhook: no API server is configured; set --kubeconfig or authorization.mode AlwaysAllow")
		}
		if node == "" {
			return nil, errors.New("cannot use authorization.mode Webhook: the node has no name")
		}
		a.reviews = reviews
		return a, nil
	}
	return nil, fmt.Errorf("authorization.mode is %q, want Webhook or AlwaysAllow", config.Mode)
}

// authorize returns whether who may do verb on a subresource of this node, from the API server or the cache. An error means no.
func (a *authorizer) authorize(ctx context.Context, who *identity, verb, subresource string) (bool, error) {
	if a.reviews == nil {
		return true, nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User:   who.Name,
		UID:    who.UID,
		Groups: who.Groups,
		Extra:  map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.node,
		},
	}
	for key, values := range who.Extra {
		spec.Extra[key] = values
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	key := sha256.Sum256(text)
	got, err := a.answers.get(ctx, string(key[:]), asker{a.turns, who.Name, &standing{}}, func(ctx context.Context) (answer[struct{}], error) {
		review, err := a.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		switch {
		case err != nil:
			return answer[struct{}]{}, err
		case review.Status.Allowed && review.Status.Denied:
			return answer[struct{}]{}, errors.New("the API server both allowed and denied it")
		case review.Status.Allowed:
			return answer[struct{}]{good: true, holds: a.allowed}, nil
		}
		return answer[struct{}]{holds: a.denied}, nil
	})
	return got.good, err
}

// guard passes authenticated and authorized requests to next. The authorized path is the served path: both use the first segment of the decoded path.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			// ReadTimeout is for slow bodies. Without a body it would only end long answers.
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		}
		client := visitorOf(r.Context())
		client.asking.Add(1)
		who, err := s.authn.authenticate(r)
		client.authenticated(who)
		client.asking.Add(-1)
		if s.refuse(w, err) {
			return
		}
		if who == nil {
			klog.V(2).InfoS("Unauthorized", "remote", r.RemoteAddr, "path", r.URL.Path, "err", err)
			plain(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		verb, subs := attributes(r.Method, r.URL.Path)
		for _, sub := range subs {
			allowed, err := s.authz.authorize(r.Context(), who, verb, sub)
			if s.refuse(w, err) {
				return
			}
			if err != nil {
				klog.ErrorS(err, "Cannot authorize a request", "user", who.Name, "verb", verb, "resource", "nodes", "subresource", sub)
				plain(w, http.StatusInternalServerError, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)", who.Name, verb, sub))
				return
			}
			if allowed {
				klog.V(4).InfoS("Request", "method", r.Method, "path", r.URL.Path, "user", who.Name)
				next.ServeHTTP(w, by(r, who))
				return
			}
		}
		klog.V(2).InfoS("Forbidden", "user", who.Name, "verb", verb, "resource", "nodes", "subresources", subs)
		plain(w, http.StatusForbidden, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n", who.Name, verb, subs))
	})
}
