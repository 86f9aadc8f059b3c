package plugins

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// Wire connects to the plugin behind a socket, a file below plugins_registry or one that a plugin names.
type Wire func(ctx context.Context, socket string) (net.Conn, error)

// Unix is the Wire of every host: a Unix socket. Wine has none, so that tests there use another.
func Unix(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// endpoint returns the socket that a plugin names as the host writes it. Manifests for Windows have C:\\x (not unquoted), /x and \x of the drive that
// dir is on, and unix:// before them. It is pure.
func endpoint(windows bool, dir, named string) (string, error) {
	if !windows {
		return named, nil
	}
	s := strings.ReplaceAll(named, "/", `\`)
	for _, pipe := range []string{`npipe:`, `\\.\pipe\`, `\\?\pipe\`} {
		if len(s) >= len(pipe) && strings.EqualFold(s[:len(pipe)], pipe) {
			return "", fmt.Errorf(`its endpoint is the named pipe %s; want a Unix socket, like C:\var\lib\kubelet\plugins\NAME\csi.sock`, named)
		}
	}
	if rest, ok := strings.CutPrefix(s, "unix:"); ok {
		s = rest
		if at := strings.Index(s, ":"); at > 0 { // slashes before a drive's letter
			s = strings.TrimLeft(s, `\`)
		}
	}
	for strings.Contains(s, `\\`) {
		s = strings.ReplaceAll(s, `\\`, `\`)
	}
	drive := "C:"
	if len(dir) > 1 && dir[1] == ':' {
		drive = dir[:2]
	}
	switch {
	case strings.HasPrefix(s, `\`):
		return drive + s, nil
	case len(s) > 2 && s[1] == ':' && s[2] == '\\':
		return s, nil
	}
	return "", fmt.Errorf(`its endpoint is %q; want the path of a Unix socket on this host, like C:\var\lib\kubelet\plugins\NAME\csi.sock`, named)
}
