package command

import (
	"os"
	"path/filepath"
)

// searchDirs returns where programs are looked for, in order.
func searchDirs() []string {
	return append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
}
