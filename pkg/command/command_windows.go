package command

import (
	"golang.org/x/sys/windows"
)

// searchDirs returns where programs are looked for: %SystemRoot%\System32, asked of Windows and not of the environment.
func searchDirs() []string {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		return nil
	}
	return []string{dir}
}
