package main

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 4122 names UUIDs by it
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The msi installs the zip's programs and scripts to C:\Program Files\winkube and nothing else. `kubelet.exe node join` copies the programs from there
// and makes services and firewall rules, so that these are the same with either artefact, and removing the msi does not touch a node.
//
//	files -> wxs -> wixl -> msi with random parts -> settled -> the same bytes each time

// installerID makes the names of the installer's parts unique. It never changes: Windows recognizes versions and components by what follows from it.
var installerID = [16]byte{0x5e, 0x1d, 0x3c, 0x0a, 0x9b, 0x57, 0x4f, 0x42, 0x8a, 0x8e, 0x27, 0x60, 0x0d, 0xf1, 0xb4, 0x93}

// uuid returns the version 5 UUID (RFC 4122) of one of the installer's parts, as Windows Installer writes it.
func uuid(part string) string {
	hash := sha1.New() //nolint:gosec // RFC 4122
	hash.Write(installerID[:])
	hash.Write([]byte(part))
	u := hash.Sum(nil)[:16]
	u[6], u[8] = u[6]&0x0f|0x50, u[8]&0x3f|0x80
	return strings.ToUpper(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}

// The elements of a wxs file, in the subset of WiX 3 that wixl reads.
type (
	wix struct {
		XMLName xml.Name `xml:"http://schemas.microsoft.com/wix/2006/wi Wix"`
		Product product
	}
	product struct {
		ID           string `xml:"Id,attr"`
		UpgradeCode  string `xml:",attr"`
		Name         string `xml:",attr"`
		Version      string `xml:",attr"`
		Manufacturer string `xml:",attr"`
		Language     int    `xml:",attr"`
		Codepage     int    `xml:",attr"`
		Package      installerPackage
		MajorUpgrade struct {
			DowngradeErrorMessage string `xml:",attr"`
		}
		Media struct {
			ID       int    `xml:"Id,attr"`
			Cabinet  string `xml:",attr"`
			EmbedCab string `xml:",attr"`
		}
		Directory directory
		Feature   struct {
			ID         string `xml:"Id,attr"`
			Level      int    `xml:",attr"`
			Components []componentRef
		}
	}
	installerPackage struct {
		InstallerVersion int    `xml:",attr"`
		Compressed       string `xml:",attr"`
		Description      string `xml:",attr"`
		Comments         string `xml:",attr"`
		Manufacturer     string `xml:",attr"`
		SummaryCodepage  int    `xml:",attr"`
		InstallScope     string `xml:",attr"`
	}
	directory struct {
		XMLName     xml.Name `xml:"Directory"`
		ID          string   `xml:"Id,attr"`
		Name        string   `xml:",attr"`
		Components  []component
		Directories []*directory
	}
	component struct {
		XMLName xml.Name `xml:"Component"`
		ID      string   `xml:"Id,attr"`
		GUID    string   `xml:"Guid,attr"`
		Win64   string   `xml:",attr"`
		File    struct {
			ID      string `xml:"Id,attr"`
			Name    string `xml:",attr"`
			Source  string `xml:",attr"`
			KeyPath string `xml:",attr"`
		}
	}
	componentRef struct {
		XMLName xml.Name `xml:"ComponentRef"`
		ID      string   `xml:"Id,attr"`
	}
)

var installerVersion = regexp.MustCompile(`^(\d{1,3}\.\d{1,3}\.\d{1,5})(-|$)`)

// staged is the directory beside the wxs with the files' data, under the same names: wixl does not find absolute paths.
const staged = "files"

// installer returns the wxs of an msi with files.
func installer(version string, files []file) ([]byte, error) {
	number := installerVersion.FindStringSubmatch(version)
	if number == nil {
		return nil, fmt.Errorf("version %s: Windows Installer wants three numbers, of which it compares 255.255.65535 at most", version)
	}
	if number[2] == "-" { // it knows no prereleases: one would not be replaced by its release
		return nil, fmt.Errorf("version %s: Windows Installer has no prereleases", version)
	}
	files, err := sorted(files)
	if err != nil {
		return nil, err
	}
	w := wix{Product: product{ID: uuid("product " + version), UpgradeCode: uuid("winkube"), Name: "winkube", Version: number[1], Manufacturer: "winkube", Language: 1033, Codepage: 1252}}
	p := &w.Product
	p.Package = installerPackage{InstallerVersion: 500, Compressed: "yes", Description: "winkube " + version, Manufacturer: p.Manufacturer, SummaryCodepage: 1252, InstallScope: "perMachine",
		Comments: "Kubernetes node agent for hosts with Docker. kubelet.exe node join makes the host a node."}
	p.MajorUpgrade.DowngradeErrorMessage = "A newer winkube is installed. To go back, remove it first, then install this version. A node keeps running."
	p.Media.ID, p.Media.Cabinet, p.Media.EmbedCab = 1, "winkube.cab", "yes"
	p.Feature.ID, p.Feature.Level = "Programs", 1
	top := &directory{ID: "INSTALLDIR", Name: "winkube"}
	p.Directory = directory{ID: "TARGETDIR", Name: "SourceDir", Directories: []*directory{{ID: "ProgramFiles64Folder", Name: "PFiles", Directories: []*directory{top}}}}
	dirs := map[string]*directory{".": top}
	for i, f := range files {
		one := component{ID: fmt.Sprintf("C%d", i), GUID: uuid("file " + f.name), Win64: "yes"}
		one.File.ID, one.File.Name, one.File.KeyPath = fmt.Sprintf("F%d", i), path.Base(f.name), "yes"
		one.File.Source = path.Join(staged, f.name)
		in := dirOf(dirs, path.Dir(f.name))
		in.Components = append(in.Components, one)
		p.Feature.Components = append(p.Feature.Components, componentRef{ID: one.ID})
	}
	text, err := xml.MarshalIndent(w, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}

// dirOf returns the directory of that name, which it makes with its parents.
func dirOf(dirs map[string]*directory, name string) *directory {
	if dirs[name] == nil {
		parent := dirOf(dirs, path.Dir(name))
		dirs[name] = &directory{ID: fmt.Sprintf("D%d", len(dirs)), Name: path.Base(name)}
		parent.Directories = append(parent.Directories, dirs[name])
	}
	return dirs[name]
}

// settled replaces what wixl makes up in an msi: the package code, by which Windows knows this very file, and two times. They are in the stream of
// the summary information (MS-OLEPS), the times right behind the code.
func settled(msi []byte, random, code string, when time.Time) ([]byte, error) {
	at := bytes.Index(msi, []byte(random))
	if at < 0 || bytes.Count(msi, []byte(random)) != 1 || len(random) != len(code) {
		return nil, fmt.Errorf("the package code %s is not there once", random)
	}
	msi = bytes.Clone(msi)
	copy(msi[at:], code)
	filetime := binary.LittleEndian.AppendUint64([]byte{0x40, 0, 0, 0}, uint64(when.UnixNano()/100)+116444736000000000) // VT_FILETIME, since 1601
	at += (len(code) + 1 + 3) / 4 * 4                                                                                   // a NUL, and up to the next four bytes
	for range 2 {
		if at+len(filetime) > len(msi) || !bytes.Equal(msi[at:at+4], filetime[:4]) {
			return nil, fmt.Errorf("no time is at byte %d of the msi", at)
		}
		copy(msi[at:], filetime)
		at += len(filetime)
	}
	return msi, nil
}

// addInstaller adds the msi of a release that is no prerelease.
func (b *build) addInstaller(ctx context.Context, files []file) error {
	if strings.Contains(b.Version, "-") {
		fmt.Fprintf(b.out, "[%3.0f s] no msi: Windows Installer knows no prereleases such as %s\n", time.Since(b.began).Seconds(), b.Version)
		return nil
	}
	data, err := b.makeInstaller(ctx, files)
	if err != nil {
		return err
	}
	return b.add("winkube-"+b.Version+"-windows-amd64.msi", data)
}

var packageCode = regexp.MustCompile(`Revision number \(UUID\): (\{[0-9A-F-]{36}\})`)

// makeInstaller writes an msi from files, by Debian's wixl.
func (b *build) makeInstaller(ctx context.Context, files []file) ([]byte, error) {
	stage, err := os.MkdirTemp("", "winkube-msi-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(stage)
	for _, f := range files {
		to := filepath.Join(stage, staged, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, f.data, 0o644); err != nil {
			return nil, err
		}
		if err := os.Chtimes(to, b.When, b.When); err != nil { // wixl writes it to the cabinet
			return nil, err
		}
	}
	wxs, err := installer(b.Version, files)
	if err != nil {
		return nil, err
	}
	source, made := filepath.Join(stage, "winkube.wxs"), filepath.Join(stage, "winkube.msi")
	if err := os.WriteFile(source, wxs, 0o644); err != nil {
		return nil, err
	}
	if _, err := b.output(ctx, "env", "TZ=UTC", "wixl", "--arch", "x64", "--output", made, source); err != nil {
		return nil, fmt.Errorf("%w; hack/ensure-packages.sh msi installs it", err)
	}
	said, err := b.output(ctx, "msiinfo", "suminfo", made)
	if err != nil {
		return nil, err
	}
	found := packageCode.FindStringSubmatch(said)
	if found == nil {
		return nil, fmt.Errorf("msiinfo names no package code: %q", said)
	}
	data, err := os.ReadFile(made)
	if err != nil {
		return nil, err
	}
	return settled(data, found[1], "{"+uuid(fmt.Sprintf("package %s %s", b.Version, b.Commit))+"}", b.When)
}
