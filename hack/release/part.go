package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// part is what tests want of a release: one artefact, with programs that they have built, such as for Wine or with another version.
type part struct {
	kind, programs, version string // "" each: a whole release
}

// kinds are the artefacts that can be made alone.
var kinds = []string{"deb", "rpm", "tar.gz", "zip"}

// check refuses a part that would look like a release, and gives the source the part's version.
func (p part) check(s *source) error {
	switch {
	case p.kind == "" && p.programs+p.version == "":
		return nil
	case !slices.Contains(kinds, p.kind):
		return fmt.Errorf("-only=%s: want one of %s", p.kind, strings.Join(kinds, ", "))
	case p.programs == "":
		return fmt.Errorf("-only=%s: want -programs, the directory of its programs", p.kind)
	case p.version != "" && !semantic.MatchString(p.version):
		return fmt.Errorf("-version=%s: want a semantic version such as 1.2.3 or 1.2.3-rc.1", p.version)
	}
	if p.version != "" {
		s.Version = p.version
	}
	return nil
}

// platforms are the platforms that the part has artefacts for.
func (p part) platforms() []platform {
	switch p.kind {
	case "":
		return platforms
	case "zip":
		return []platform{{"windows", "amd64"}}
	}
	return []platform{{"linux", runtime.GOARCH}}
}

// wants reports whether the part has artefacts of a kind.
func (p part) wants(kind string) bool { return p.kind == "" || p.kind == kind }

// archiveOf is the kind of archive for a system.
func archiveOf(system string) string {
	if system == "windows" {
		return "zip"
	}
	return "tar.gz"
}
