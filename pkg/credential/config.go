package credential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	config "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

// configVersions are the API versions accepted for a CredentialProviderConfig. They differ in name only.
var configVersions = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}

// read reads a CredentialProviderConfig. It merges the *.json, *.yaml and *.yml files of a directory, in name order.
func read(path string) ([]config.CredentialProvider, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the credential providers: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		files = nil
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read the credential providers: %w", err)
		}
		for _, entry := range entries {
			if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
	}
	var all []config.CredentialProvider
	known := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the credential providers: %w", err)
		}
		providers, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("cannot use %s: %w", file, err)
		}
		for _, provider := range providers {
			if other := known[provider.Name]; other != "" {
				return nil, fmt.Errorf("cannot use %s: providers: name %q is also in %s; names must be unique", file, provider.Name, other)
			}
			known[provider.Name] = file
		}
		all = append(all, providers...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("cannot use %s: it holds no credential provider; want at least one", path)
	}
	return all, nil
}

func parse(data []byte) ([]config.CredentialProvider, error) {
	var read config.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(data, &read); err != nil {
		return nil, err
	}
	if read.Kind != "CredentialProviderConfig" || !slices.Contains(configVersions, read.APIVersion) {
		return nil, fmt.Errorf("it is %s %s; want %s CredentialProviderConfig", read.APIVersion, read.Kind, configVersions[0])
	}
	var errs []error
	names := map[string]bool{}
	for i, provider := range read.Providers {
		problems := check(provider)
		if names[provider.Name] {
			problems = append(problems, fmt.Sprintf("name: %q is used twice", provider.Name))
		}
		names[provider.Name] = true
		for _, problem := range problems {
			errs = append(errs, fmt.Errorf("providers[%d].%s", i, problem))
		}
	}
	return read.Providers, errors.Join(errs...)
}

// check lists a provider's errors, each starting with the field.
func check(p config.CredentialProvider) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, `/\ `) {
		bad("name: %q; want the name of a program, without directory and spaces", p.Name)
	}
	if want := api.SchemeGroupVersion.String(); p.APIVersion != want {
		bad("apiVersion: %q; want %q", p.APIVersion, want)
	}
	if len(p.MatchImages) == 0 {
		bad("matchImages: none; want at least one pattern such as *.registry.example")
	}
	for _, pattern := range p.MatchImages {
		if strings.Contains(pattern, "://") || strings.HasPrefix(pattern, "/") || pattern == "" {
			bad("matchImages: %q; want a registry, perhaps with a path, such as registry.example:8080/team", pattern)
		}
	}
	if p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0 {
		bad("defaultCacheDuration: want a duration such as 10m, or 0s")
	}
	for _, variable := range p.Env {
		if variable.Name == "" || strings.Contains(variable.Name, "=") {
			bad("env: name %q; want the name of an environment variable", variable.Name)
		}
	}
	if p.TokenAttributes != nil {
		for _, problem := range checkToken(p.TokenAttributes) {
			bad("tokenAttributes.%s", problem)
		}
	}
	return problems
}

func checkToken(t *config.ServiceAccountTokenAttributes) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if t.ServiceAccountTokenAudience == "" {
		bad("serviceAccountTokenAudience: want the audience of the token")
	}
	if t.CacheType != config.TokenServiceAccountTokenCacheType && t.CacheType != config.ServiceAccountServiceAccountTokenCacheType {
		bad("cacheType: %q; want Token or ServiceAccount", t.CacheType)
	}
	if t.RequireServiceAccount == nil {
		bad("requireServiceAccount: want true or false")
	} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		bad("requiredServiceAccountAnnotationKeys: want none where requireServiceAccount is false")
	}
	seen := map[string]bool{}
	for _, key := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			bad("annotation key %q: %s", key, strings.Join(problems, "; "))
		}
		if seen[key] {
			bad("annotation key %q is used twice", key)
		}
		seen[key] = true
	}
	return problems
}
