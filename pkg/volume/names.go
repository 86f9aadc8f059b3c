package volume

import (
	"fmt"
	"path"
	"strings"

	"github.com/winkube/winkube/pkg/pod"
)

// devices are names that Windows takes for devices in any directory and with any extension.
var devices = map[string]bool{
	"con": true, "prn": true, "aux": true, "nul": true, "conin$": true, "conout$": true,
	"com0": true, "com1": true, "com2": true, "com3": true, "com4": true, "com5": true, "com6": true, "com7": true, "com8": true, "com9": true,
	"lpt0": true, "lpt1": true, "lpt2": true, "lpt3": true, "lpt4": true, "lpt5": true, "lpt6": true, "lpt7": true, "lpt8": true, "lpt9": true,
	"com¹": true, "com²": true, "com³": true, "lpt¹": true, "lpt²": true, "lpt³": true,
}

// checkElement says why name cannot be one file or directory name on platform.
func checkElement(platform pod.Platform, name string) error {
	switch {
	case name == "", name == ".", name == "..":
		return fmt.Errorf("%q is not a file name", name)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%q is not a file name: want no slash and no zero byte in it", name)
	case len(name) > 255:
		return fmt.Errorf("%q... is not a file name: want at most 255 bytes, have %d", name[:32], len(name))
	case platform.OS != "windows":
		return nil
	}
	if strings.ContainsAny(name, `<>:"\|?*`) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
		return fmt.Errorf(`%q is not a file name on Windows: want none of <>:"/\|?* and no control characters in it`, name)
	}
	if strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") {
		return fmt.Errorf("%q is not a file name on Windows: want no dot or space at its end", name)
	}
	base, _, _ := strings.Cut(strings.ToLower(name), ".")
	if devices[strings.TrimRight(base, " ")] {
		return fmt.Errorf("%q is not a file name on Windows: it is the name of a device", name)
	}
	return nil
}

// checkRelative says why p is not a path, with forward slashes, that stays below the directory it is relative to.
func checkRelative(platform pod.Platform, p string) error {
	if path.IsAbs(p) {
		return fmt.Errorf("%q is an absolute path; want a relative one", p)
	}
	for _, e := range strings.Split(p, "/") {
		if e == ".." {
			return fmt.Errorf("%q must not contain \"..\"", p)
		}
		if err := checkElement(platform, e); err != nil {
			return err
		}
	}
	return nil
}

// cleanSubPath returns a volumeMounts[].subPath with forward slashes and without empty and "." elements; "." is the volume itself.
// Upstream's words for what is refused.
func cleanSubPath(platform pod.Platform, sub string) (string, error) {
	p := sub
	if platform.OS == "windows" {
		p = strings.ReplaceAll(p, `\`, "/")
	}
	if path.IsAbs(p) || platform.OS == "windows" && len(p) > 1 && p[1] == ':' {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	var elements []string
	for _, e := range strings.Split(p, "/") {
		switch e {
		case "", ".":
			continue
		case "..":
			return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
		}
		if err := checkElement(platform, e); err != nil {
			return "", fmt.Errorf("unable to provision SubPath `%s`: %w", sub, err)
		}
		elements = append(elements, e)
	}
	if len(elements) == 0 {
		return ".", nil
	}
	return strings.Join(elements, "/"), nil
}

// hostPath returns a hostPath volume's path as the host writes it. Manifests for Windows have C:\x, C:/x, /x (drive C) and \\.\pipe\x.
func hostPath(platform pod.Platform, p string) (string, error) {
	if p == "" {
		return "", fmt.Errorf("hostPath.path is empty; want an absolute path")
	}
	if strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("hostPath.path %q has a zero byte in it", p)
	}
	if platform.OS != "windows" {
		if !path.IsAbs(p) {
			return "", fmt.Errorf("hostPath.path %q is relative; want an absolute path", p)
		}
		return p, nil
	}
	w := windowsPath(p)
	switch {
	case isPipe(w), strings.HasPrefix(w, `\\`), hasDrive(w) && len(w) > 2 && w[2] == '\\':
		return w, nil
	}
	return "", fmt.Errorf(`hostPath.path %q is relative; want an absolute path like C:\data`, p)
}

// windowsPath writes p with backslashes, and a path from the root with the drive that containers and hosts have.
func windowsPath(p string) string {
	w := strings.ReplaceAll(p, "/", `\`)
	if strings.HasPrefix(w, `\`) && !strings.HasPrefix(w, `\\`) {
		w = "c:" + w
	}
	return w
}

func hasDrive(p string) bool {
	return len(p) >= 2 && p[1] == ':' && (p[0]|0x20 >= 'a' && p[0]|0x20 <= 'z')
}

func isPipe(p string) bool { return strings.HasPrefix(strings.ToLower(p), `\\.\pipe\`) }

// containerPath returns a mountPath as the container's system writes it.
func containerPath(platform pod.Platform, p string) (string, error) {
	switch {
	case p == "":
		return "", fmt.Errorf("mountPath is empty; want an absolute path")
	case platform.OS == "windows":
		w := windowsPath(p)
		if !hasDrive(w) && !isPipe(w) {
			w = `c:\` + w
		}
		return w, nil
	case strings.Contains(p, ":"):
		return "", fmt.Errorf("mountPath %q must not contain ':'", p)
	case !path.IsAbs(p):
		return "/" + p, nil
	}
	return p, nil
}
