package podspec

import (
	"fmt"
	"slices"
	"strings"
)

// PipePrefix is the prefix of pipe names on Windows.
const PipePrefix = `\\.\pipe\`

// windowsDevices are names that Windows treats as devices in any directory and with any extension (Microsoft, "Naming Files, Paths, and
// Namespaces").
var windowsDevices = map[string]bool{
	"con": true, "prn": true, "aux": true, "nul": true, "conin$": true, "conout$": true,
	"com0": true, "com1": true, "com2": true, "com3": true, "com4": true, "com5": true, "com6": true, "com7": true, "com8": true, "com9": true,
	"lpt0": true, "lpt1": true, "lpt2": true, "lpt3": true, "lpt4": true, "lpt5": true, "lpt6": true, "lpt7": true, "lpt8": true, "lpt9": true,
	"com¹": true, "com²": true, "com³": true, "lpt¹": true, "lpt²": true, "lpt³": true,
}

// CheckWindowsName says why name is not a valid name of a file or directory on Windows. A colon would select a stream of a file, or a
// drive.
func CheckWindowsName(name string) error {
	if strings.ContainsAny(name, `<>:"/\|?*`) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
		return fmt.Errorf(`%q is not a file name on Windows: want none of <>:"/\|?* and no control characters in it`, name)
	}
	if strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") {
		return fmt.Errorf("%q is not a file name on Windows: want no dot or space at its end", name)
	}
	base, _, _ := strings.Cut(strings.ToLower(name), ".")
	if windowsDevices[strings.TrimRight(base, " ")] {
		return fmt.Errorf("%q is not a file name on Windows: it is the name of a device", name)
	}
	return nil
}

// WindowsPath converts an absolute path of a spec to the canonical form for comparisons and for the engine. Specs use `C:\x`, `C:/x`, `/x`
// (drive C), `\\.\pipe\x` and `\\server\share\x`. It refuses what Windows would interpret differently: "..", devices, streams, other device
// paths.
func WindowsPath(p string) (string, error) {
	w := strings.ReplaceAll(p, "/", `\`)
	if IsPipe(w) {
		if name := w[len(PipePrefix):]; name == "" || strings.ContainsAny(name, "\x00:") {
			return "", fmt.Errorf(`%q is no pipe; want a name like \\.\pipe\name`, p)
		}
		return PipePrefix + w[len(PipePrefix):], nil
	}
	root := ""
	switch {
	case strings.HasPrefix(w, `\\`):
		root, w = `\\`, w[2:]
	case strings.HasPrefix(w, `\`):
		root, w = `C:\`, w[1:]
	case len(w) > 2 && w[1:3] == `:\` && (w[0]|0x20 >= 'a' && w[0]|0x20 <= 'z'):
		root, w = w[:3], w[3:]
	default:
		return "", fmt.Errorf(`%q is relative; want an absolute path like C:\data`, p)
	}
	elements := slices.DeleteFunc(strings.Split(w, `\`), func(e string) bool { return e == "" || e == "." })
	for i, e := range elements {
		if e == ".." {
			return "", fmt.Errorf(`%q must not contain ".."`, p)
		}
		if root == `\\` && i == 0 && (e == "?" || e == ".") {
			return "", fmt.Errorf("%q is a path of a device", p)
		}
		if err := CheckWindowsName(e); err != nil {
			return "", fmt.Errorf("path %q: %w", p, err)
		}
	}
	if root == `\\` && (len(elements) < 2 || strings.HasPrefix(w, `.\`)) {
		return "", fmt.Errorf(`%q is no share; want a path like \\server\share`, p)
	}
	return root + strings.Join(elements, `\`), nil
}

// IsPipe reports whether a path of a spec names a Windows pipe.
func IsPipe(p string) bool {
	return strings.HasPrefix(strings.ToLower(strings.ReplaceAll(p, "/", `\`)), PipePrefix)
}

// WindowsWithin returns the rest of path below dir, "" if they are equal. Both must come from WindowsPath. Case is ignored.
func WindowsWithin(path, dir string) (rest string, ok bool) {
	dir = strings.TrimSuffix(dir, `\`)
	if len(path) < len(dir) || !strings.EqualFold(path[:len(dir)], dir) {
		return "", false
	}
	rest = path[len(dir):]
	return strings.TrimPrefix(rest, `\`), rest == "" || rest[0] == '\\'
}
