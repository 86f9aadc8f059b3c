package rig

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// patches are changes to Go's standard library that Wine 8 needs. Each has an effect only where real Windows answers
// differently.
var patches = []struct{ file, why, before, after string }{
	{
		"src/internal/syscall/windows/at_windows.go",
		"Wine answers STATUS_NOT_IMPLEMENTED to FileDispositionInformationEx, and every os.RemoveAll fails",
		"case STATUS_INVALID_INFO_CLASS,",
		"case NTStatus(0xC0000002), STATUS_INVALID_INFO_CLASS,",
	},
	{
		"src/net/fd_windows.go",
		"Wine refuses SIO_UDP_NETRESET, and every UDP socket fails",
		"windows.SIO_UDP_NETRESET, (*byte)(unsafe.Pointer(&flag)), size, nil, 0, &ret, nil, 0)\n\t\tif err != nil {",
		"windows.SIO_UDP_NETRESET, (*byte)(unsafe.Pointer(&flag)), size, nil, 0, &ret, nil, 0)\n\t\tif err != nil && err != syscall.Errno(10045) {",
	},
	{
		"src/os/file_windows.go",
		"Wine makes no symbolic link and reports success, and no certificate that was requested is found: client-go links to the current one",
		"\toldname = filepathlite.FromSlash(oldname)\n\n\t// need the exact location",
		"\tif n := len(newname); n > 4 && newname[n-4:] == \".pem\" {\n\t\treturn Link(oldname, newname)\n\t}\n\toldname = filepathlite.FromSlash(oldname)\n\n\t// need the exact location",
	},
}

// writeOverlay writes patched copies of goroot's files into dir, and the overlay file that lists them. It does not rewrite
// unchanged files.
func writeOverlay(goroot, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, patch := range patches {
		original := filepath.Join(goroot, filepath.FromSlash(patch.file))
		data, err := os.ReadFile(original)
		if err != nil {
			return "", fmt.Errorf("cannot patch Go's library: %w", err)
		}
		if n := strings.Count(string(data), patch.before); n != 1 {
			return "", fmt.Errorf("cannot patch %s (%s): found %q %d times, want once: this version of Go needs another patch", original, patch.why, patch.before, n)
		}
		copied := filepath.Join(dir, filepath.Base(patch.file))
		if err := writeIfChanged(copied, []byte(strings.Replace(string(data), patch.before, patch.after, 1))); err != nil {
			return "", err
		}
		replace[original] = copied
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, writeIfChanged(path, data)
}

func writeIfChanged(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return nil
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(fresh, data, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
