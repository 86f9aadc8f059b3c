package volume

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
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

// tokenFile is the file of a projected service account token, bound to the pod. A token is renewed when 80 % of its life or a day has
// passed (KEP-1205); until a renewal succeeds the old one serves as long as it lives.
func (m *Manager) tokenFile(ctx context.Context, s *podState, p *v1.Pod, src *v1.ServiceAccountTokenProjection, mode *int32) (payload, error) {
	key := tokenKey{account: p.Spec.ServiceAccountName, audience: src.Audience, seconds: defaultTokenLife}
	if key.account == "" {
		key.account = "default"
	}
	if src.ExpirationSeconds != nil {
		key.seconds = *src.ExpirationSeconds
	}
	t, have := s.tokens[key]
	now := m.clock.Now()
	if !have || passed(now, t.renew) {
		fresh, err := m.requestToken(ctx, p, key)
		switch {
		case err == nil:
			t = fresh
			s.tokens[key] = fresh
		case have && !passed(now, t.expires):
			klog.ErrorS(err, "Keeping the former service account token", "pod", klog.KObj(p), "expires", t.expires)
		default:
			return nil, err
		}
	}
	f := file{data: []byte(t.text), mode: modeOf(nil, mode)}
	// Where one user or group can be named that needs it, nobody else may read it.
	f.uid = m.onlyUser(p)
	if f.uid != nil || m.fsGroup(p) != nil {
		f.mode = 0o600
	}
	return payload{src.Path: f}, nil
}

func (m *Manager) requestToken(ctx context.Context, p *v1.Pod, key tokenKey) (token, error) {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &key.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if key.audience != "" {
		req.Spec.Audiences = []string{key.audience}
	}
	req.ObjectMeta = metav1.ObjectMeta{Name: key.account, Namespace: p.Namespace}
	asked := m.clock.Now()
	got, err := m.objects.Token(ctx, p.Namespace, key.account, req)
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
func (m *Manager) onlyUser(p *v1.Pod) *int64 {
	if m.cfg.Platform.OS == "windows" {
		return nil
	}
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
