// Command docs checks the documentation's site in a directory: every internal link leads to an existing file and heading, and no page loads
// anything from another host.
package main

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	// reference matches an attribute with a link. Links of tags that load something must stay in this site.
	reference = regexp.MustCompile(`<(\w+)\b[^>]*?\s(?:href|src)="?([^"\s>]+)`)
	anchor    = regexp.MustCompile(`\sid="?([^"\s>]+)`)
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: docs DIRECTORY")
		os.Exit(2)
	}
	broken, pages, err := check(os.DirFS(os.Args[1]))
	for _, one := range broken {
		fmt.Fprintln(os.Stderr, "docs:", one)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
	}
	if err != nil || len(broken) > 0 {
		os.Exit(1)
	}
	fmt.Printf("docs: %d pages, no broken links\n", pages)
}

// check returns a line for each broken link of the site, and the number of pages.
func check(site fs.FS) (broken []string, pages int, err error) {
	files := map[string]bool{}
	anchors := map[string][]string{} // by page
	texts := map[string]string{}
	err = fs.WalkDir(site, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files[name] = true
		if filepath.Ext(name) != ".html" || name == "404.html" { // it is served at any path
			return nil
		}
		data, err := fs.ReadFile(site, name)
		if err != nil {
			return err
		}
		texts[name] = string(data)
		for _, match := range anchor.FindAllStringSubmatch(texts[name], -1) {
			anchors[name] = append(anchors[name], match[1])
		}
		return nil
	})
	for name, text := range texts {
		for _, match := range reference.FindAllStringSubmatch(text, -1) {
			if why := wrong(name, match[1], match[2], files, anchors); why != "" {
				broken = append(broken, fmt.Sprintf("%s: %s: %s", name, match[2], why))
			}
		}
	}
	slices.Sort(broken)
	return slices.Compact(broken), len(texts), err
}

// wrong says what is wrong with a page's reference from a tag, or returns "".
func wrong(page, tag, to string, files map[string]bool, anchors map[string][]string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return err.Error()
	case u.Scheme == "data" || u.Scheme == "mailto":
		return ""
	case u.Host != "" && tag == "a":
		return "" // a reader may follow it; the build does not
	case u.Host != "":
		return "loaded from another host"
	}
	target := page
	if u.Path != "" {
		target = path.Join(path.Dir(page), u.Path)
	}
	if strings.HasSuffix(u.Path, "/") || target == "." {
		target = path.Join(target, "index.html")
	}
	if !files[target] {
		return "no such file"
	}
	if u.Fragment != "" && !slices.Contains(anchors[target], u.Fragment) {
		return "no such heading"
	}
	return ""
}
