package kubeclient

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/clientset"
)

// AccountToken is the claims of a service account's token. They are not verified here: the API server does that.
type AccountToken struct {
	Issued, Expires    time.Time
	Namespace, Account string
	Node               string // the Node that it is bound to; "": none
	NodeUID            types.UID
}

// ReadAccountToken reads a token's claims (the API server's pkg/serviceaccount/claims.go). The error does not contain the token.
func ReadAccountToken(token string) (AccountToken, error) {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return AccountToken{}, errors.New("it is no JSON Web Token")
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return AccountToken{}, errors.New("its second part is not base64url")
	}
	type object struct {
		Name string    `json:"name"`
		UID  types.UID `json:"uid"`
	}
	claims := struct {
		Issued     int64 `json:"iat"`
		Expires    int64 `json:"exp"`
		Kubernetes struct {
			Namespace string `json:"namespace"`
			Account   object `json:"serviceaccount"`
			Node      object `json:"node"`
		} `json:"kubernetes.io"`
	}{}
	if err := json.Unmarshal(data, &claims); err != nil {
		return AccountToken{}, errors.New("its claims are not JSON")
	}
	k := claims.Kubernetes
	if k.Namespace == "" || k.Account.Name == "" || claims.Expires <= claims.Issued {
		return AccountToken{}, errors.New("it is no token of a service account that expires")
	}
	return AccountToken{Issued: time.Unix(claims.Issued, 0), Expires: time.Unix(claims.Expires, 0), Namespace: k.Namespace, Account: k.Account.Name,
		Node: k.Node.Name, NodeUID: k.Node.UID}, nil
}

// Due is when a new token should be requested: after 70 % of its lifetime.
func (t AccountToken) Due() time.Time { return t.Issued.Add(t.Expires.Sub(t.Issued) * 7 / 10) }

// accountTokenLife is the requested lifetime. The API server may grant less (--service-account-max-token-expiration).
const accountTokenLife = 365 * 24 * time.Hour

// Request requests a token like t: for the same account, bound to the same Node. The token becomes invalid when that Node is deleted.
func (t AccountToken) Request(ctx context.Context, client clientset.Interface) (string, error) {
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(accountTokenLife.Seconds()))}}
	if t.Node != "" {
		request.Spec.BoundObjectRef = &authentication.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: t.Node, UID: t.NodeUID}
	}
	answer, err := client.ServiceAccounts(t.Namespace).CreateToken(ctx, t.Account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("cannot request a token of service account %s/%s: %w", t.Namespace, t.Account, err)
	}
	return answer.Status.Token, nil
}

// WriteSecret atomically replaces the content of a file that only its owner may read.
func WriteSecret(path, secret string) error {
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(secret)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// TokenFile renews the token in a file, using the token itself. client-go reads such a file every minute.
type TokenFile struct {
	Path   string
	Client clientset.Interface
	Clock  clock.Clock
}

// Run renews until ctx ends. It logs failures and retries.
func (f *TokenFile) Run(ctx context.Context) {
	retry := renewal
	for ctx.Err() == nil {
		pause, err := f.renew(ctx)
		if err != nil && ctx.Err() == nil {
			pause = retry.Step()
			klog.ErrorS(err, "Cannot renew the token; using the current one and retrying", "file", f.Path, "retryIn", pause)
		} else {
			retry = renewal
		}
		select {
		case <-ctx.Done():
		case <-f.Clock.After(pause):
		}
	}
}

// renew requests a new token if one is due, and returns when to look again.
func (f *TokenFile) renew(ctx context.Context) (time.Duration, error) {
	data, err := os.ReadFile(f.Path)
	if err != nil {
		return 0, err
	}
	token, err := ReadAccountToken(string(data))
	if err != nil {
		return 0, fmt.Errorf("%s: %w; run kubelet node join again", f.Path, err)
	}
	if left := token.Due().Sub(f.Clock.Now()); left > 0 {
		return min(left, longestLook), nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	text, err := token.Request(ctx, f.Client)
	if err == nil {
		err = WriteSecret(f.Path, text)
	}
	if err != nil {
		return 0, err
	}
	klog.InfoS("Renewed the token", "file", f.Path)
	return time.Minute, nil
}
