package app

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/kubelet"
)

func (s *settings) makeImages() error {
	c, own := s.c, s.runtime
	if (own.providersConfig == "") != (own.providersDir == "") {
		return fmt.Errorf("want both or neither of --image-credential-provider-config and --image-credential-provider-bin-dir")
	}
	if pulls := *c.MaxParallelImagePulls; pulls < 0 || *c.SerializeImagePulls && pulls > 1 {
		return fmt.Errorf("--max-parallel-image-pulls=%d: want at least 1, or 0 for no limit, and not more than 1 with --serialize-image-pulls", pulls)
	}
	s.Images = kubelet.Images{ProvidersConfig: own.providersConfig, ProvidersDir: own.providersDir,
		Policy: credential.Policy(c.ImagePullCredentialsVerificationPolicy), Allowed: c.PreloadedImagesVerificationAllowlist}
	if _, err := credential.NewRecords(own.rootDir, s.Images.Policy, s.Images.Allowed); err != nil {
		return fmt.Errorf("--image-pull-credentials-verification-policy, --preloaded-images-verification-allowlist: %w", err)
	}
	return nil
}

// dockerConfigs are the paths where upstream's kubelet looks for the node's own logins.
func dockerConfigs(rootDir string) []string {
	files := []string{filepath.Join(rootDir, "config.json")}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	return files
}
