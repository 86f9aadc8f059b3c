package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	spdx "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const homepage = "https://github.com/winkube/winkube"

// program is a program that was built.
type program struct {
	Name, System, Arch string
	Data               []byte
	Modules            []dependency
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// notInID matches characters that SPDX identifiers may not contain.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func identifier(parts ...string) common.ElementID {
	return common.ElementID(notInID.ReplaceAllString(strings.Join(parts, "-"), "-"))
}

// billOfMaterials lists the programs, the modules in each, and the images, in SPDX 2.3. Licences come from licences, by module and version.
func billOfMaterials(s *source, programs []program, images []madeImage, licences map[string]string) ([]byte, error) {
	document := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: "winkube-" + s.Version,
		DocumentNamespace: homepage + "/spdx/" + s.Version + "/" + s.Commit,
		CreationInfo:      &v2_3.CreationInfo{Created: s.When.Format(time.RFC3339), Creators: []common.Creator{{Creator: "winkube hack/release", CreatorType: "Tool"}}},
	}
	modules := map[common.ElementID]bool{}
	relate := func(a common.ElementID, how string, b common.ElementID) {
		document.Relationships = append(document.Relationships, &v2_3.Relationship{RefA: common.MakeDocElementID("", string(a)), Relationship: how, RefB: common.MakeDocElementID("", string(b))})
	}
	for _, p := range programs {
		id := identifier("Program", p.Name, p.System, p.Arch)
		document.Packages = append(document.Packages, &v2_3.Package{
			PackageName: p.Name + " for " + p.System + "/" + p.Arch, PackageSPDXIdentifier: id, PackageVersion: s.Version, PackageFileName: p.Name,
			PackageDownloadLocation: "git+" + homepage + "@" + s.Commit, PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: sum(p.Data)}},
			PackageLicenseConcluded: "Apache-2.0", PackageLicenseDeclared: "Apache-2.0", PackageCopyrightText: "NOASSERTION", PrimaryPackagePurpose: "APPLICATION",
		})
		relate("DOCUMENT", "DESCRIBES", id)
		for _, m := range p.Modules {
			module := identifier("Module", m.Path, m.Version)
			relate(id, "DEPENDS_ON", module)
			if modules[module] {
				continue
			}
			modules[module] = true
			licence := licences[m.Path+"@"+m.Version]
			if licence == "" {
				return nil, fmt.Errorf("the licence of module %s %s is not known", m.Path, m.Version)
			}
			one := &v2_3.Package{
				PackageName: m.Path, PackageSPDXIdentifier: module, PackageVersion: m.Version, PackageDownloadLocation: "NOASSERTION",
				PackageLicenseConcluded: licence, PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION", PrimaryPackagePurpose: "LIBRARY",
				PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")}},
			}
			if m.Sum != "" {
				one.PackageSourceInfo = "sum in go.sum: " + m.Sum
			}
			document.Packages = append(document.Packages, one)
		}
	}
	for _, i := range images {
		id := identifier("Image", i.Program.Name, i.Program.System, i.Program.Arch)
		document.Packages = append(document.Packages, &v2_3.Package{
			PackageName: "image " + imageName(i.Program.Name, s.Version) + " for " + i.Program.System + "/" + i.Program.Arch, PackageSPDXIdentifier: id, PackageVersion: s.Version,
			PackageFileName: i.Archive, PackageDownloadLocation: "NOASSERTION", PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: i.Sum}},
			PackageLicenseConcluded: "Apache-2.0", PackageLicenseDeclared: "Apache-2.0", PackageCopyrightText: "NOASSERTION", PrimaryPackagePurpose: "CONTAINER",
			PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl",
				Locator: "pkg:oci/" + i.Program.Name + "@" + strings.ReplaceAll(i.Digest, ":", "%3A") + "?arch=" + i.Program.Arch}},
		})
		relate("DOCUMENT", "DESCRIBES", id)
		relate(id, "CONTAINS", identifier("Program", i.Program.Name, i.Program.System, i.Program.Arch))
	}
	var out bytes.Buffer
	err := spdx.Write(document, &out, spdx.Indent(" "))
	return out.Bytes(), err
}

// statement is an in-toto statement (https://github.com/in-toto/attestation, spec v1) whose predicate is SLSA's provenance
// (https://slsa.dev/spec/v1.0/provenance).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]any    `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

type resource struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

// provenanceOf describes how the artefacts were built, and from what. It omits machine and time, which would differ between runs. It is not signed:
// anyone can repeat the build and compare.
func provenanceOf(s *source, artefacts []file, goVersion string) ([]byte, error) {
	st := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, a := range artefacts {
		st.Subject = append(st.Subject, subject{a.name, map[string]string{"sha256": sum(a.data)}})
	}
	slices.SortFunc(st.Subject, func(a, b subject) int { return strings.Compare(a.Name, b.Name) })
	build := &st.Predicate.BuildDefinition
	build.BuildType = homepage + "/tree/main/hack/release"
	build.ExternalParameters = map[string]any{"repository": homepage, "version": s.Version, "command": "make release"}
	build.InternalParameters = map[string]string{"go": goVersion, "SOURCE_DATE_EPOCH": fmt.Sprint(s.When.Unix())}
	build.ResolvedDependencies = []resource{{"git+" + homepage, map[string]string{"gitCommit": s.Commit}}}
	st.Predicate.RunDetails.Builder.ID = homepage + "/tree/main/hack/release#local"
	out, err := json.MarshalIndent(st, "", " ")
	return append(out, '\n'), err
}

// sumsName is the file with the checksums of all others.
const sumsName = "SHA256SUMS"

// sums returns lines that sha256sum -c accepts.
func sums(artefacts []file) []byte {
	var out strings.Builder
	files := slices.Clone(artefacts)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	for _, a := range files {
		fmt.Fprintf(&out, "%s  %s\n", sum(a.data), a.name)
	}
	return []byte(out.String())
}
