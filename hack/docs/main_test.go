package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestCheck(t *testing.T) {
	site := fstest.MapFS{
		"index.html": {Data: []byte(`<h1 id="top">x</h1><a href="guides/a.html#here">a</a> <a href="guides/">g</a> <a href=#top>t</a>
			<a href="guides/a.html#gone">b</a> <a class=x href="missing.html">c</a> <script src="https://example.org/x.js"></script>
			<a href="https://example.org/">elsewhere</a> <img src="data:image/png;base64,xx">`)},
		"guides/a.html":     {Data: []byte(`<h2 class="y" id=here>h</h2><a href="../index.html#top">up</a><link rel=stylesheet href=../s.css>`)},
		"guides/index.html": {Data: []byte(`<p>`)},
		"s.css":             {},
	}
	broken, pages, err := check(site)
	want := `index.html: guides/a.html#gone: no such heading
index.html: https://example.org/x.js: loaded from another host
index.html: missing.html: no such file`
	if got := strings.Join(broken, "\n"); err != nil || pages != 3 || got != want {
		t.Errorf("%d pages, %v, got\n%s\nwant\n%s", pages, err, got, want)
	}
}
