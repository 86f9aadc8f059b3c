package command

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// searchDirs returns the search path for programs: %SystemRoot%\System32, as returned by Windows instead of the environment.
func searchDirs() []string {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		return nil
	}
	return []string{dir}
}

// attributes starts a program with a windowless console: a service has no console that its programs could share, and each would get an invisible
// window. Ctrl-C in the caller's console does not reach the program.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NO_WINDOW}
}
