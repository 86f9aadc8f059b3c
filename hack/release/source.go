package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// source is the commit to release.
type source struct {
	Root    string // root of the checkout
	Version string // semantic version without a v
	Commit  string // full hash
	Dirty   bool
	When    time.Time // timestamp of everything in the artefacts
}

// semantic matches a semantic version. Build metadata is not accepted: package formats compare it in different ways.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)

// readSource reads version, commit and time. epoch is SOURCE_DATE_EPOCH, which overrides the commit's time.
func readSource(ctx context.Context, root, epoch string) (*source, error) {
	text, err := os.ReadFile(filepath.Join(root, "hack", "VERSION"))
	if err != nil {
		return nil, fmt.Errorf("run this in the root of the checkout: %w", err)
	}
	s := &source{Root: root, Version: strings.TrimSpace(string(text))}
	if !semantic.MatchString(s.Version) {
		return nil, fmt.Errorf("hack/VERSION: %q: want a semantic version such as 1.2.3 or 1.2.3-rc.1", s.Version)
	}
	changes, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	if changesOf(string(changes), s.Version) == "" {
		return nil, fmt.Errorf("CHANGELOG.md: no section %q with lines in it: say there what is new for users", "## ["+s.Version+"]")
	}
	if s.Commit, err = s.git(ctx, "rev-parse", "HEAD"); err != nil {
		return nil, err
	}
	status, err := s.git(ctx, "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	s.Dirty = status != ""
	committed, err := s.git(ctx, "log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseInt(cmp.Or(epoch, committed), 10, 64)
	if err != nil || seconds < 315532800 { // 1980, the earliest time in a zip archive
		return nil, fmt.Errorf("SOURCE_DATE_EPOCH=%s: want seconds since 1970, from 315532800 on", cmp.Or(epoch, committed))
	}
	s.When = time.Unix(seconds, 0).UTC()
	return s, nil
}

func (s *source) git(ctx context.Context, args ...string) (string, error) {
	out, err := s.output(ctx, "git", args...)
	return strings.TrimSpace(out), err
}

// output runs a program in the checkout and returns its output. On failure, the error is the last line of its standard
// error.
func (s *source) output(ctx context.Context, program string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Dir, command.Env = s.Root, s.environment()
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, lines[len(lines)-1])
	}
	return string(out), nil
}

// environment returns this process's environment without variables that would change the programs.
func (s *source) environment() []string {
	return append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0", "LC_ALL=C", "TZ=UTC",
		"SOURCE_DATE_EPOCH="+strconv.FormatInt(s.When.Unix(), 10))
}

// tracked reads the files below paths that git tracks, in git's order.
func (s *source) tracked(ctx context.Context, paths ...string) ([]file, error) {
	list, err := s.output(ctx, "git", append([]string{"ls-files", "-z", "--"}, paths...)...)
	if err != nil {
		return nil, err
	}
	var all []file
	for name := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(s.Root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		all = append(all, file{name, 0o644, data})
	}
	for _, wanted := range paths {
		if !covers(all, wanted) {
			return nil, fmt.Errorf("%s: git tracks no such file", wanted)
		}
	}
	return all, nil
}

func covers(all []file, wanted string) bool {
	for _, f := range all {
		if f.name == wanted || strings.HasPrefix(f.name, path.Clean(wanted)+"/") {
			return true
		}
	}
	return false
}

// changesOf returns a version's section of CHANGELOG.md, without its heading.
func changesOf(changelog, version string) string {
	_, rest, _ := strings.Cut("\n"+changelog, "\n## ["+version+"]")
	_, rest, _ = strings.Cut(rest, "\n") // the rest of the heading is a date
	section, _, _ := strings.Cut("\n"+rest, "\n## ")
	section, _, _ = strings.Cut(section, "\n[") // link definitions
	return strings.TrimSpace(section)
}
