package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// In rpmpack, which nfpm writes rpm files with, a payload's name is that on the host, such as /usr/bin/kubelet. rpmbuild writes ./usr/bin/kubelet: cpio
// unpacks that below its directory, and the other over the host's file.
const (
	rpmPack  = "github.com/google/rpmpack"
	absolute = "&cpio.Header{\n\t\tName:  f.Name,\n"
	relative = "&cpio.Header{\n\t\tName:  \".\" + f.Name,\n"
)

// relativeNames returns the source of rpmpack that writes the payload with relative names.
func relativeNames(source string) (string, error) {
	if n := strings.Count(source, absolute); n != 1 {
		return "", fmt.Errorf("%q occurs %d times: want once; if this version of nfpm writes ./usr/bin, build it without the replacement", absolute, n)
	}
	return strings.Replace(source, absolute, relative, 1), nil
}

// buildNFPM builds nfpm from its module, with relative names in the payload of an rpm, and returns the path of the program.
func (s *source) buildNFPM(ctx context.Context) (tool string, err error) {
	root, err := filepath.Abs(s.Root)
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp("", "winkube-nfpm-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	module, replaced := filepath.Join(root, "hack", "tools", "nfpm"), filepath.Join(work, "rpmpack")
	if err := s.replaceRPMPack(ctx, module, replaced); err != nil {
		return "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		if name == "go.mod" {
			text = fmt.Appendf(text, "\nreplace %s => %s\n", rpmPack, replaced)
		}
		if err := os.WriteFile(filepath.Join(work, name), text, 0o600); err != nil {
			return "", err
		}
	}
	tool = filepath.Join(root, "_output", "tools", "nfpm")
	_, err = s.output(ctx, "go", "build", "-C", module, "-trimpath", "-modfile="+filepath.Join(work, "go.mod"), "-o", tool, "github.com/goreleaser/nfpm/v2/cmd/nfpm")
	return tool, err
}

// replaceRPMPack copies rpmpack's sources, of the version that the module has, into a new directory with relative names.
func (s *source) replaceRPMPack(ctx context.Context, module, dir string) error {
	original, err := s.output(ctx, "go", "list", "-C", module, "-f", "{{.Dir}}", rpmPack)
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(strings.TrimSpace(original))); err != nil {
		return err
	}
	name := filepath.Join(dir, "rpm.go")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := relativeNames(string(text))
	if err != nil {
		return fmt.Errorf("%s of %s: %w", filepath.Base(name), rpmPack, err)
	}
	return os.WriteFile(name, []byte(changed), 0o600)
}
