package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const rpmPack = "github.com/google/rpmpack"

// corrections are the places of rpmpack, which nfpm writes rpm files with, where they differ from those of rpmbuild.
var corrections = []struct{ is, want string }{
	// A payload's name is that on the host, such as /usr/bin/kubelet; cpio writes it there. That of ./usr/bin/kubelet goes below the current directory.
	{"&cpio.Header{\n\t\tName:  f.Name,\n", "&cpio.Header{\n\t\tName:  \".\" + f.Name,\n"},
	// The payload's size is that of the files in it. rpm2cpio fails if it is not that of the cpio archive.
	{"sigHeader.Add(sigPayloadSize, EntryInt32([]int32{int32(r.payloadSize)}))", "sigHeader.Add(sigPayloadSize, EntryInt32([]int32{archiveSize(r.files)}))"},
}

// archiveSize is a file of rpmpack beside its own. A file in a cpio archive has 110 bytes and its name with "." and a NUL byte, and then its data, each filled to
// 4 bytes. At the end is a file TRAILER!!! without data.
const archiveSize = `package rpmpack

func archiveSize(files map[string]RPMFile) int32 {
	size := 124
	for _, f := range files {
		if f.Type != GhostFile {
			size += (110+len(f.Name)+2+3)/4*4 + (len(f.Body)+3)/4*4
		}
	}
	return int32(size)
}
`

// corrected returns the source of rpmpack with the corrections.
func corrected(source string) (string, error) {
	for _, c := range corrections {
		if n := strings.Count(source, c.is); n != 1 {
			return "", fmt.Errorf("%q occurs %d times: want once; a version of nfpm whose rpm files are as those of rpmbuild needs no correction", c.is, n)
		}
		source = strings.Replace(source, c.is, c.want, 1)
	}
	return source, nil
}

// buildNFPM builds nfpm from its module, with the corrections, and returns the path of the program.
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
	if err := s.correctRPMPack(ctx, module, replaced); err != nil {
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

// correctRPMPack copies rpmpack's sources, of the version that the module has, into a new directory and corrects them there.
func (s *source) correctRPMPack(ctx context.Context, module, dir string) error {
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
	changed, err := corrected(string(text))
	if err != nil {
		return fmt.Errorf("%s of %s: %w", filepath.Base(name), rpmPack, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "archivesize.go"), []byte(archiveSize), 0o600); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(changed), 0o600)
}
