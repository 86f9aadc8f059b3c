package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/kubelet"
)

func (o *options) setImages(cfg *kubelet.Config) error {
	if (o.providersConfig == "") != (o.providersDir == "") {
		return fmt.Errorf("want both or neither of --image-credential-provider-config and --image-credential-provider-bin-dir")
	}
	if o.maxParallelPulls < 0 || o.serializePulls && o.maxParallelPulls > 1 {
		return fmt.Errorf("--max-parallel-image-pulls=%d: want at least 1, or 0 for no limit, and not more than 1 with --serialize-image-pulls", o.maxParallelPulls)
	}
	cfg.Images = kubelet.Images{ProvidersConfig: o.providersConfig, ProvidersDir: o.providersDir, Policy: credential.Policy(o.imagePolicy), Allowed: o.allowedImages}
	if _, err := credential.NewRecords(o.rootDir, cfg.Images.Policy, cfg.Images.Allowed); err != nil {
		return fmt.Errorf("--image-pull-credentials-verification-policy, --preloaded-images-verification-allowlist: %w", err)
	}
	return nil
}

// dockerConfigs are where upstream's kubelet looks for the node's own logins.
func (o *options) dockerConfigs() []string {
	files := []string{filepath.Join(o.rootDir, "config.json")}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	return files
}

// parseHeaders reads HTTP headers. What they hold may be secret and is not repeated in the error.
func parseHeaders(flag string, values []string) (map[string][]string, error) {
	headers := map[string][]string{}
	for i, value := range values {
		name, content, ok := strings.Cut(value, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("--%s (number %d): want a header such as \"authorization: Bearer x\"", flag, i+1)
		}
		headers[name] = append(headers[name], strings.TrimSpace(content))
	}
	return headers, nil
}
