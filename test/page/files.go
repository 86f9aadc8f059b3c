package page

import (
	"io/fs"
	"path/filepath"
	"strings"
)

// Files returns the paths of README.md and of every page below docs in the repository at root, sorted by name.
func Files(root string) ([]string, error) {
	files := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
	return files, err
}
