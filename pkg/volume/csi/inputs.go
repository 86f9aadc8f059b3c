package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Keys of the volume context that drivers know.
const (
	contextName      = "csi.storage.k8s.io/pod.name"
	contextNamespace = "csi.storage.k8s.io/pod.namespace"
	contextUID       = "csi.storage.k8s.io/pod.uid"
	contextAccount   = "csi.storage.k8s.io/serviceAccount.name"
	contextEphemeral = "csi.storage.k8s.io/ephemeral"
	contextTokens    = "csi.storage.k8s.io/serviceAccount.tokens"
)

// inputs reads what the calls for d need. staging: NodeStage is among them.
func (k *Kind) inputs(ctx context.Context, p *v1.Pod, d described, r rules, staging bool) (in inputs, err error) {
	if staging {
		if in.stageSecrets, err = k.secret(ctx, "NodeStageSecretRef", d.stageSecret); err != nil {
			return in, err
		}
	}
	if in.publishSecrets, err = k.secret(ctx, "NodePublishSecretRef", d.publishSecret); err != nil {
		return in, err
	}
	if r.podInfo {
		in.context = podInfo(p, d.ephemeral)
	}
	if len(r.tokens) == 0 || d.block {
		return in, nil
	}
	text, err := k.tokens(ctx, p, r.tokens)
	if err != nil {
		return in, fmt.Errorf(pluginName+": mounter.SetUpAt failed to get service account token attributes: %w", err)
	}
	tokens := map[string]string{contextTokens: text}
	if r.tokensInSecrets {
		in.publishSecrets = merged(in.publishSecrets, tokens)
	} else {
		in.context = merged(in.context, tokens)
	}
	return in, nil
}

// secret returns the data of the Secret in ref, the field of that name; nil without one.
func (k *Kind) secret(ctx context.Context, field string, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := k.parts.Objects.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", field, ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(secret.Data))
	for name, value := range secret.Data {
		out[name] = string(value)
	}
	return out, nil
}

// podInfo returns what a driver with podInfoOnMount gets. It is pure.
func podInfo(p *v1.Pod, ephemeral bool) map[string]string {
	return map[string]string{
		contextName: p.Name, contextNamespace: p.Namespace, contextUID: string(p.UID), contextAccount: p.Spec.ServiceAccountName,
		contextEphemeral: strconv.FormatBool(ephemeral),
	}
}

// tokenKey is what a token is for.
type tokenKey struct {
	uid               types.UID
	account, audience string
	seconds           int64 // 0: the API server decides
}

// token is a requested token, and when to request the next.
type token struct {
	status authenticationv1.TokenRequestStatus
	renew  time.Time
}

// tokens returns the pod's tokens by audience, in the form for drivers. They are kept for four fifths of their life: a republish each minute would
// otherwise request them each minute.
func (k *Kind) tokens(ctx context.Context, p *v1.Pod, requests []storagev1.TokenRequest) (string, error) {
	out := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range requests {
		key := tokenKey{uid: p.UID, account: p.Spec.ServiceAccountName, audience: r.Audience}
		if key.account == "" {
			key.account = "default"
		}
		if r.ExpirationSeconds != nil {
			key.seconds = *r.ExpirationSeconds
		}
		k.mu.Lock()
		have, known := k.tokensOf[key]
		k.mu.Unlock()
		if now := k.parts.Clock.Now(); !known || !now.Before(have.renew) {
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: r.ExpirationSeconds,
				BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
			}}
			if r.Audience != "" {
				request.Spec.Audiences = []string{r.Audience}
			}
			got, err := k.parts.Objects.Token(ctx, p.Namespace, key.account, request)
			if err != nil {
				return "", err
			}
			// The lifetime, not the time of expiry, which is by the API server's clock.
			life := time.Hour
			if got.Spec.ExpirationSeconds != nil {
				life = time.Duration(*got.Spec.ExpirationSeconds) * time.Second
			}
			have = token{status: got.Status, renew: now.Add(life * 8 / 10)}
			k.mu.Lock()
			k.tokensOf[key] = have
			k.mu.Unlock()
		}
		out[r.Audience] = have.status
	}
	text, err := json.Marshal(out)
	return string(text), err
}
