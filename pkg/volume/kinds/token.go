package kinds

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/atomic"
)

// tokenKey tells the tokens of one pod apart.
type tokenKey struct {
	account, audience string
	seconds           int64
}

type token struct {
	text           string
	renew, expires time.Time
}

const (
	defaultTokenLife = 3600 // seconds, as the API fills it in
	maxTokenAge      = 24 * time.Hour
)

// tokens makes files of service account tokens. It remembers those of each pod: after a restart of the agent they are requested again.
type tokens struct {
	api interface {
		Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	}
	access access.Control
	clock  clock.PassiveClock

	mu   sync.Mutex
	pods map[types.UID]map[tokenKey]token
}

func (k *tokens) known(uid types.UID, key tokenKey) (token, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.pods[uid][key]
	return t, ok
}

func (k *tokens) keep(uid types.UID, key tokenKey, t token) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods[uid] == nil {
		k.pods[uid] = map[tokenKey]token{}
	}
	k.pods[uid][key] = t
}

func (k *tokens) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, uid)
}

// read is the file of a projected service account token, bound to the pod. A token is renewed when 80 % of its life or a day has passed
// (KEP-1205); until a renewal succeeds the old one serves as long as it lives.
func (k *tokens) read(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection, mode *int32) (atomic.Content, error) {
	key := tokenKey{account: p.Spec.ServiceAccountName, audience: src.Audience, seconds: defaultTokenLife}
	if key.account == "" {
		key.account = "default"
	}
	if src.ExpirationSeconds != nil {
		key.seconds = *src.ExpirationSeconds
	}
	t, have := k.known(p.UID, key)
	now := k.clock.Now()
	if !have || passed(now, t.renew) {
		fresh, err := k.request(ctx, p, key)
		switch {
		case err == nil:
			t = fresh
			k.keep(p.UID, key, fresh)
		case have && !passed(now, t.expires):
			klog.ErrorS(err, "Cannot renew a service account token; the pod keeps the one it has", "pod", klog.KObj(p), "expires", t.expires)
		default:
			return nil, err
		}
	}
	f := atomic.File{Data: []byte(t.text), Mode: modeOf(nil, mode)}
	// Where one user or group needs it that can be named, no other may read it.
	if k.access.Platform.OS != "windows" {
		f.UID = onlyUser(p)
	}
	if f.UID != nil || k.access.FSGroup(p) != nil {
		f.Mode = 0o600
	}
	return atomic.Content{src.Path: f}, nil
}

func (k *tokens) request(ctx context.Context, p *v1.Pod, key tokenKey) (token, error) {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &key.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if key.audience != "" {
		req.Spec.Audiences = []string{key.audience}
	}
	req.ObjectMeta = metav1.ObjectMeta{Name: key.account, Namespace: p.Namespace}
	asked := k.clock.Now()
	got, err := k.api.Token(ctx, p.Namespace, key.account, req)
	if err != nil {
		return token{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	if got.Status.Token == "" {
		return token{}, fmt.Errorf("failed to fetch token: the API server sent an empty one for service account %q", key.account)
	}
	// Its life, and not the time at which it expires: that is by the API server's clock.
	life := time.Duration(key.seconds) * time.Second
	if got.Spec.ExpirationSeconds != nil {
		life = time.Duration(*got.Spec.ExpirationSeconds) * time.Second
	}
	return token{text: got.Status.Token, expires: asked.Add(life), renew: asked.Add(min(life*8/10, maxTokenAge))}, nil
}

// passed says whether t is over, by the time that has gone by or by the clock: the one does not count while the machine sleeps, the other
// may be set back.
func passed(now, t time.Time) bool { return !now.Before(t) || !now.Round(0).Before(t.Round(0)) }

// onlyUser is the user as which all containers of p run, if the spec names exactly one.
func onlyUser(p *v1.Pod) *int64 {
	var user *int64
	same := true
	see := func(sc *v1.SecurityContext) {
		var u *int64
		if p.Spec.SecurityContext != nil {
			u = p.Spec.SecurityContext.RunAsUser
		}
		if sc != nil && sc.RunAsUser != nil {
			u = sc.RunAsUser
		}
		if u == nil || user != nil && *user != *u {
			same = false
		}
		user = u
	}
	for _, c := range p.Spec.InitContainers {
		see(c.SecurityContext)
	}
	for _, c := range p.Spec.Containers {
		see(c.SecurityContext)
	}
	for _, c := range p.Spec.EphemeralContainers {
		see(c.SecurityContext)
	}
	if !same {
		return nil
	}
	return user
}
