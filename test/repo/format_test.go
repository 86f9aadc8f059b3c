package repo_test

import (
	"bytes"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"
)

// TestFormat checks that gofmt would change no Go file, nested modules and testdata included.
func TestFormat(t *testing.T) {
	for _, dir := range []string{"cmd", "pkg", "test", "hack", "build"} {
		root := os.DirFS(filepath.Join("..", ".."))
		err := fs.WalkDir(root, dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || path.Ext(name) != ".go" {
				return err
			}
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			if formatted, err := format.Source(text); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !bytes.Equal(formatted, text) {
				t.Errorf("%s: not formatted; run: gofmt -w %s", name, name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
