// Package credential decides who may use which image: it gets logins from the node's credential provider plugins, and records which logins
// images were pulled with.
//
//	start.Resolver: an image, a pod -> Plugins.Logins -> the plugins (processes) -> logins for the pull
//	              a pull that ended -> Records.Pulled -> a file; an image that is present, a pod -> Records.Usable
//
// It implements pod.CredentialPlugins (KEP-2133, with service account tokens KEP-4412) and pod.PullRecords (KEP-2535). Logins are never
// logged or written to disk; records contain hashes.
package credential

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	config "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// timeLimit is the maximum duration of one plugin run, as in upstream.
const timeLimit = time.Minute

// Parts are the dependencies of Plugins. All are required, but only plugins with tokenAttributes use the first two.
type Parts struct {
	ServiceAccount func(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	Token          func(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// Runner returns a command.Runner whose programs get env (name=value) and whose errors show only stderr.
	Runner func(env []string) command.Runner
	Clock  clock.PassiveClock
}

// Plugins implements pod.CredentialPlugins. Its methods are safe for concurrent use.
type Plugins struct {
	list []*plugin
}

var _ pod.CredentialPlugins = (*Plugins)(nil)

// plugin is one entry of the configuration. Its responses are cached as they specify.
type plugin struct {
	config.CredentialProvider
	path    string
	parts   Parts
	runner  command.Runner
	flights singleflight.Group

	mu    sync.Mutex
	cache map[cacheKey]cached
}

// cacheKey is what a response applies to: an image, a registry or, if what is "", everything. If account is set, it applies only to that
// service account or token.
type cacheKey struct{ what, account string }

type cached struct {
	logins []pod.Login
	until  time.Time
}

// New returns the plugins that configPath configures (a file, or a directory of files), whose programs are in binDir
// (--image-credential-provider-config, --image-credential-provider-bin-dir). The error names file and field.
func New(configPath, binDir string, parts Parts) (*Plugins, error) {
	providers, err := read(configPath)
	if err != nil {
		return nil, err
	}
	all := &Plugins{}
	for _, provider := range providers {
		path, err := filepath.Abs(filepath.Join(binDir, provider.Name))
		if err == nil {
			path, err = command.Look(path)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot use credential provider %q: its program must be in %s: %w", provider.Name, binDir, err)
		}
		env := os.Environ()
		for _, variable := range provider.Env { // the last value wins
			env = append(env, variable.Name+"="+variable.Value)
		}
		all.list = append(all.list, &plugin{CredentialProvider: provider, path: path, parts: parts, runner: parts.Runner(env), cache: map[cacheKey]cached{}})
	}
	return all, nil
}

// Logins implements pod.CredentialPlugins.
func (p *Plugins) Logins(ctx context.Context, of *v1.Pod, image string) []pod.Login {
	var all []pod.Login
	for _, one := range p.list {
		if !slices.ContainsFunc(one.MatchImages, func(pattern string) bool { return podspec.ImageMatches(pattern, image) }) {
			continue
		}
		logins, err := one.logins(ctx, of, image)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "A credential provider returned no login", "provider", one.Name, "image", image, "pod", klog.KObj(of))
		}
		all = append(all, logins...)
	}
	return all
}

// identity is what a plugin with tokenAttributes gets about the pod's service account; zero for nothing.
type identity struct {
	source      pod.CredentialSource
	token       string
	annotations map[string]string
	key         string // for the cache
}

func (p *plugin) logins(ctx context.Context, of *v1.Pod, image string) ([]pod.Login, error) {
	who, ok, err := p.identify(ctx, of)
	if err != nil || !ok {
		return nil, err
	}
	logins, ok := p.cached(image, who.key)
	if !ok {
		if logins, err = p.ask(ctx, image, who); err != nil {
			return nil, err
		}
	}
	logins = slices.Clone(logins)
	for i := range logins {
		logins[i].Source = who.source
	}
	return logins, nil
}

// identify reads the service account data that the plugin wants. ok is false if the plugin does not apply to this pod.
func (p *plugin) identify(ctx context.Context, of *v1.Pod) (who identity, ok bool, err error) {
	want := p.TokenAttributes
	name := of.Spec.ServiceAccountName
	if want == nil || name == "" {
		return who, want == nil || !*want.RequireServiceAccount, nil
	}
	account, err := p.parts.ServiceAccount(ctx, of.Namespace, name)
	if err != nil {
		return who, false, fmt.Errorf("cannot get service account %s/%s: %w", of.Namespace, name, err)
	}
	who.annotations = map[string]string{}
	for _, key := range want.RequiredServiceAccountAnnotationKeys {
		value, found := account.Annotations[key]
		if !found { // this is how workloads opt out of the plugin
			klog.V(4).InfoS("A service account lacks an annotation that a credential provider requires", "provider", p.Name, "account", klog.KObj(account), "annotation", key)
			return who, false, nil
		}
		who.annotations[key] = value
	}
	for _, key := range want.OptionalServiceAccountAnnotationKeys {
		if value, found := account.Annotations[key]; found {
			who.annotations[key] = value
		}
	}
	answer, err := p.parts.Token(ctx, of.Namespace, name, &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account.UID},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{want.ServiceAccountTokenAudience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: of.Name, UID: of.UID},
		},
	})
	if err != nil {
		return who, false, fmt.Errorf("cannot get a token of service account %s/%s for audience %q (the node needs the verb request-serviceaccounts-token-audience for it): %w",
			of.Namespace, name, want.ServiceAccountTokenAudience, err)
	}
	who.token = answer.Status.Token
	who.source = pod.CredentialSource{Kind: pod.FromServiceAccount, Namespace: of.Namespace, Name: name, UID: account.UID}
	parts := []any{of.Namespace, name, account.UID, who.annotations}
	if want.CacheType == config.TokenServiceAccountTokenCacheType {
		parts = append(parts, of.Name, of.UID, hash(who.token))
	}
	key, _ := json.Marshal(parts) // strings and a map of strings always encode
	who.key = string(key)
	return who, true, nil
}

// cached returns an unexpired response, the most specific first.
func (p *plugin) cached(image, account string) ([]pod.Login, bool) {
	now := p.parts.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.cache, func(_ cacheKey, c cached) bool { return !now.Before(c.until) })
	for _, what := range []string{image, registryOf(image), ""} {
		if c, ok := p.cache[cacheKey{what, account}]; ok {
			return c.logins, true
		}
	}
	return nil, false
}

func registryOf(image string) string {
	registry, _, _ := strings.Cut(image, "/")
	return registry
}

// ask runs the plugin. Concurrent callers with the same request share one run.
func (p *plugin) ask(ctx context.Context, image string, who identity) ([]pod.Login, error) {
	request, err := json.Marshal(api.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: "CredentialProviderRequest"},
		Image:    image, ServiceAccountToken: who.token, ServiceAccountAnnotations: who.annotations,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	ran := p.flights.DoChan(string(request), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeLimit) // other callers may share it
		defer cancel()
		return p.run(ctx, request, image, who)
	})
	select {
	case result := <-ran:
		logins, _ := result.Val.([]pod.Login)
		return logins, result.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *plugin) run(ctx context.Context, request []byte, image string, who identity) ([]pod.Login, error) {
	output, err := p.runner.Run(ctx, request, p.path, p.Args...)
	if err != nil {
		return nil, err
	}
	var response api.CredentialProviderResponse
	if json.NewDecoder(bytes.NewReader(output)).Decode(&response) != nil {
		return nil, errors.New("its answer is not a CredentialProviderResponse in JSON") // the decoder's error could contain a login
	}
	if response.APIVersion != p.APIVersion || response.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("its answer is %s %s; want %s CredentialProviderResponse", response.APIVersion, response.Kind, p.APIVersion)
	}
	key := cacheKey{account: who.key}
	switch response.CacheKeyType {
	case api.ImagePluginCacheKeyType:
		key.what = image
	case api.RegistryPluginCacheKeyType:
		key.what = registryOf(image)
	case api.GlobalPluginCacheKeyType:
	default:
		return nil, fmt.Errorf("its answer has cacheKeyType %q; want Image, Registry or Global", response.CacheKeyType)
	}
	var logins []pod.Login
	for _, server := range slices.Sorted(maps.Keys(response.Auth)) {
		auth := response.Auth[server]
		if who.token != "" && auth.Password == who.token && p.TokenAttributes.CacheType != config.TokenServiceAccountTokenCacheType {
			return nil, errors.New("its answer has the service account's token as password, which requires tokenAttributes.cacheType Token")
		}
		logins = append(logins, pod.Login{Server: server, Credential: pod.Credential{Username: auth.Username, Password: auth.Password}})
	}
	holds := cmp.Or(response.CacheDuration, p.DefaultCacheDuration).Duration
	if holds > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cache[key] = cached{logins, p.parts.Clock.Now().Add(holds)}
	}
	return logins, nil
}
