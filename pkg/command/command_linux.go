package command

import (
	"os"
	"path/filepath"
	"syscall"
)

// searchDirs returns the search path for programs.
func searchDirs() []string {
	return append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
}

// attributes returns nil: Linux programs need no special attributes.
func attributes() *syscall.SysProcAttr { return nil }
