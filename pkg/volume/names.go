package volume

import (
	"fmt"
	"path"
	"strings"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// checkElement says why name cannot be one file or directory name on platform.
func checkElement(platform pod.Platform, name string) error {
	switch {
	case name == "", name == ".", name == "..":
		return fmt.Errorf("%q is not a file name", name)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%q is not a file name: want no slash and no zero byte in it", name)
	case len(name) > 255:
		return fmt.Errorf("%q... is not a file name: want at most 255 bytes, have %d", name[:32], len(name))
	case platform.OS == "windows":
		return podspec.CheckWindowsName(name)
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
	w, err := podspec.WindowsPath(p)
	if err != nil {
		return "", fmt.Errorf("hostPath.path: %w", err)
	}
	return w, nil
}

// containerPath returns a mountPath as the container's system writes it.
func containerPath(platform pod.Platform, p string) (string, error) {
	switch {
	case p == "":
		return "", fmt.Errorf("mountPath is empty; want an absolute path")
	case platform.OS == "windows":
		return windowsTarget(p)
	case strings.Contains(p, ":"):
		return "", fmt.Errorf("mountPath %q must not contain ':'", p)
	case !path.IsAbs(p):
		return "/" + p, nil
	}
	return p, nil
}

// windowsTarget is a mountPath on Windows: on a drive, or a pipe.
func windowsTarget(p string) (string, error) {
	if !strings.ContainsAny(p, `:`) && !strings.HasPrefix(strings.ReplaceAll(p, "/", `\`), `\`) {
		p = "/" + p
	}
	w, err := podspec.WindowsPath(p)
	switch {
	case err != nil:
		return "", fmt.Errorf("mountPath: %w", err)
	case strings.HasPrefix(w, `\\`) && !podspec.IsPipe(w):
		return "", fmt.Errorf(`mountPath %q is a share; want a directory of the container like C:\data`, p)
	case strings.EqualFold(w, `C:\`):
		return "", fmt.Errorf(`mountPath %q is the drive of the system; want a directory like C:\data`, p)
	}
	return w, nil
}
