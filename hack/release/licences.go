package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// dependency is a module that some programs contain.
type dependency struct {
	Path, Version string
	Sum           string // h1:... from go.sum
	Licence       string // SPDX expression: Apache-2.0, MIT AND BSD-3-Clause
	Texts         []file // licences and notices, by file name in the module
}

// dependencies returns the modules in a program, as Go recorded them, sorted by path.
func dependencies(program string) ([]dependency, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var all []dependency
	for _, m := range info.Deps {
		m = cmp.Or[*debug.Module](m.Replace, m)
		if m.Sum == "" {
			return nil, fmt.Errorf("%s: module %s %s has no sum: want one that go.sum has", program, m.Path, m.Version)
		}
		all = append(all, dependency{Path: m.Path, Version: m.Version, Sum: m.Sum})
	}
	return all, nil
}

// texts matches file names of licences and notices.
var texts = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)([-._].*)?$`)

// code matches endings of source files whose names match texts.
var code = regexp.MustCompile(`(?i)\.(go|tmpl|json|sh|py)$`)

// packageDirs are the directories of the programs' packages by module. The module's root comes first.
type packageDirs map[string][]string

// add parses the output of `go list` with listFormat.
func (p packageDirs) add(listed string) error {
	for line := range strings.Lines(listed) {
		parts := strings.Split(strings.TrimRight(line, "\r\n"), "\t")
		switch {
		case len(parts) == 1 && parts[0] == "": // the standard library
			continue
		case len(parts) != 3 || parts[1] == "":
			return fmt.Errorf("go list prints %q: run go mod download", line)
		}
		if p[parts[0]] == nil {
			p[parts[0]] = []string{parts[1]}
		}
		if !slices.Contains(p[parts[0]], parts[2]) {
			p[parts[0]] = append(p[parts[0]], parts[2])
		}
	}
	return nil
}

const listFormat = "{{with .Module}}{{.Path}}\t{{.Dir}}{{end}}{{if .Module}}\t{{.Dir}}{{end}}"

// readLicences reads the licences that apply to a module's packages: those in their directories and in all parents up to the module's root, which
// is dirs[0]. Code elsewhere in the module is not in the programs.
func (d *dependency) readLicences(dirs []string) error {
	if len(dirs) == 0 {
		return fmt.Errorf("module %s %s is in a program, but go list does not know it: build the programs again", d.Path, d.Version)
	}
	root, seen := dirs[0], map[string]bool{}
	for _, dir := range dirs {
		for ; !seen[dir]; dir = filepath.Dir(dir) {
			seen[dir] = true
			if err := d.readTexts(root, dir); err != nil {
				return err
			}
			if dir == root {
				break
			}
		}
	}
	slices.SortFunc(d.Texts, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return d.identify()
}

func (d *dependency) readTexts(root, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !texts.MatchString(entry.Name()) || code.MatchString(entry.Name()) {
			continue
		}
		name := filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		d.Texts = append(d.Texts, file{filepath.ToSlash(inside), 0o644, data})
	}
	return nil
}

// identify sets the SPDX expression of the licences that were read.
func (d *dependency) identify() error {
	var found []string
	for _, text := range d.Texts {
		for _, one := range licencesIn(string(text.data)) {
			if !slices.Contains(found, one) {
				found = append(found, one)
			}
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("module %s %s: no licence that hack/release knows: read it, then add its words to the table marks", d.Path, d.Version)
	}
	slices.Sort(found)
	d.Licence = strings.Join(found, " AND ")
	return nil
}

// marks are phrases that occur in only one licence, with its SPDX identifier. Spaces, case and quotes do not count.
var marks = []struct{ id, words string }{
	{"Apache-2.0", "apache license version 2.0, january 2004"},
	{"Apache-2.0", "licensed under the apache license, version 2.0"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"MPL-2.0", "mozilla public license, version 2.0"},
	{"CC-BY-4.0", "creative commons attribution 4.0 international public license"},
	{"GPL-2.0-only", "gnu general public license version 2, june 1991"},
	{"LGPL-3.0-only", "gnu lesser general public license version 3"},
}

// spaces matches runs of spaces and comment markers.
var spaces = regexp.MustCompile(`(?:[\s*#]|//)+`)

// licencesIn returns the identifiers of the licences in a text.
func licencesIn(text string) (ids []string) {
	text = strings.ToLower(spaces.ReplaceAllString(text, " "))
	for _, m := range marks {
		if strings.Contains(text, m.words) && !slices.Contains(ids, m.id) {
			ids = append(ids, m.id)
		}
	}
	if strings.Contains(text, "redistribution and use in source and binary forms") {
		if strings.Contains(text, "neither the name") || strings.Contains(text, "may not be used to endorse") || strings.Contains(text, "may be used to endorse") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}
	return ids
}

// thirdParty returns one file with the licences of all modules. A text that several modules share appears once.
func thirdParty(modules []dependency) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "The programs of winkube contain code of these modules. Their licences follow; a text that several share is printed once.\n\n")
	where := map[string][]string{}
	var order []string
	for _, m := range modules {
		fmt.Fprintf(&out, "%s %s: %s\n", m.Path, m.Version, m.Licence)
		for _, text := range m.Texts {
			key := strings.TrimSpace(strings.ReplaceAll(string(text.data), "\r\n", "\n"))
			if where[key] == nil {
				order = append(order, key)
			}
			where[key] = append(where[key], m.Path+" "+m.Version+", "+text.name)
		}
	}
	for _, text := range order {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 100), strings.Join(where[text], "\n"), text)
	}
	return out.Bytes()
}
