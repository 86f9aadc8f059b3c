package engine

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
)

// volume is one mount as Windows parses it.
type volume struct {
	kind           mount.Type // bind, volume or npipe
	source, target string
	readOnly       bool
}

// The forms of a bind: [source:]target[:mode]. Either path may begin with a drive. Source: moby volume/mounts/windows_parser.go.
var (
	bindForm = regexp.MustCompile(`(?i)^(?:(` + hostForm + `|` + pipeForm + `|[^\\/:*?"<>|\r\n]+):)?([a-z]:(?:[\\/][^\\/:*?"<>\r\n]+)*[\\/]?|` + pipeForm + `)(?::(ro|rw))?$`)
	fromHost = regexp.MustCompile(`(?i)^` + hostForm + `$`)
	absolute = regexp.MustCompile(`(?i)^([a-z]:(?:[\\/][^\\/:*?"<>\r\n]+)*[\\/]?|` + pipeForm + `)$`)
)

const (
	hostForm = `[a-z]:[\\/](?:[^\\/:*?"<>|\r\n]+[\\/]?)*`
	pipeForm = `[/\\]{2}\.[/\\]pipe[/\\][^:*?"<>|\r\n]+`
)

func isPipe(path string) bool {
	return strings.HasPrefix(strings.ReplaceAll(path, "/", `\`), `\\.\pipe\`)
}

// volumes parses all mounts of a container. An error says why Windows refuses one.
func (q request) volumes() ([]volume, error) {
	var all []volume
	for _, bind := range q.Host.Binds {
		m := bindForm.FindStringSubmatch(bind)
		if m == nil {
			return nil, fmt.Errorf("invalid volume specification: '%s'", bind)
		}
		v := volume{kind: mount.TypeVolume, source: m[1], target: m[2], readOnly: strings.EqualFold(m[3], "ro")}
		switch {
		case isPipe(v.source):
			v.kind = mount.TypeNamedPipe
		case fromHost.MatchString(v.source):
			v.kind = mount.TypeBind
		}
		v.source = strings.ToLower(v.source) // windows_parser.go splitRawSpec
		if err := q.engine.checkVolume(v, ""); err != nil {
			return nil, internal{fmt.Errorf("invalid volume specification: '%s': invalid mount config for type %q: %w", bind, v.kind, err)}
		}
		all = append(all, v)
	}
	for _, m := range q.Host.Mounts {
		v := volume{kind: m.Type, source: m.Source, target: m.Target, readOnly: m.ReadOnly}
		propagation := mount.Propagation("")
		if m.BindOptions != nil {
			propagation = m.BindOptions.Propagation
		}
		if err := q.engine.checkVolume(v, propagation); err != nil {
			return nil, fmt.Errorf("invalid mount config for type %q: %w", m.Type, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// internal marks an error that the engine answers with 500, such as a bind that parses but cannot be used (moby volume/mounts/windows_parser.go
// ParseMountRaw).
type internal struct{ error }

func statusOf(err error) int {
	if errors.As(err, &internal{}) {
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

func mountRule(q request) error {
	_, err := q.volumes()
	return err
}

// checkVolume refuses what moby's windowsParser.validateMountConfigReg refuses.
func (e *Engine) checkVolume(v volume, propagation mount.Propagation) error {
	target := strings.ToLower(strings.ReplaceAll(v.target, "/", `\`))
	switch {
	case v.target == "":
		return fmt.Errorf("field Target must not be empty")
	case target == "c:" || target == `c:\`:
		return fmt.Errorf(`destination path (%s) cannot be 'c:' or 'c:\'`, target)
	case !absolute.MatchString(v.target):
		return fmt.Errorf("invalid mount path: '%s' mount path must be absolute", v.target)
	}
	switch v.kind {
	case mount.TypeBind:
		switch {
		case v.source == "":
			return fmt.Errorf("field Source must not be empty")
		case propagation != "":
			return fmt.Errorf("invalid propagation mode: %s", propagation)
		case !fromHost.MatchString(v.source):
			return fmt.Errorf("invalid mount path: '%s' mount path must be absolute", v.source)
		case !strings.EqualFold(v.source[:2], "c:"):
			return fmt.Errorf("bind source path does not exist: %s", v.source) // C is the only drive
		}
		info, err := os.Stat(e.Path(v.source))
		if err != nil {
			return fmt.Errorf("bind source path does not exist: %s", v.source)
		}
		if !info.IsDir() {
			return fmt.Errorf("source path must be a directory")
		}
	case mount.TypeVolume:
	case mount.TypeNamedPipe:
		switch {
		case e.opts.Build < sharedNetworks:
			return fmt.Errorf("mount type unknown") // named pipe mounts need 1709: moby/moby#33852
		case !isPipe(v.source):
			return fmt.Errorf("'%s' is not a valid pipe path", v.source)
		case !isPipe(v.target):
			return fmt.Errorf("'%s' is not a valid pipe path", v.target)
		case v.readOnly:
			return fmt.Errorf("field ReadOnly must not be specified")
		}
	default:
		return fmt.Errorf("mount type unknown")
	}
	return nil
}

// points returns the mounts as inspect shows them. The Windows engine converts both paths to lower case
// (windows_parser.go splitRawSpec).
func points(all []volume) []container.MountPoint {
	out := []container.MountPoint{}
	for _, v := range all {
		out = append(out, container.MountPoint{Type: v.kind, Source: strings.ToLower(v.source), Destination: strings.ToLower(v.target), RW: !v.readOnly})
	}
	return out
}

// binds returns the mounts for the Linux engine. It has no named pipes, so that Linux containers do without.
func (e *Engine) binds(all []volume) (out []string) {
	for _, v := range all {
		if v.kind == mount.TypeNamedPipe {
			continue
		}
		source := v.source
		if v.kind == mount.TypeBind {
			source = e.Path(v.source)
		}
		line := source + ":" + inside(v.target)
		if v.kind == mount.TypeBind && inside(v.target) == "/dev" { // Linux needs its own /dev; only the file that pods write there is mounted
			if err := os.WriteFile(filepath.Join(source, messageFile), nil, 0o666); err == nil {
				line = filepath.Join(source, messageFile) + ":/dev/" + messageFile
			}
		}
		if v.source == "" {
			line = inside(v.target)
		}
		if v.readOnly {
			line += ":ro"
		}
		out = append(out, line)
	}
	return out
}

// messageFile is the last element of the default path of a termination message in Kubernetes.
const messageFile = "termination-log"

// inside translates a path in a Windows container to its path in the Linux container: `C:\var\run` is /var/run.
func inside(windows string) string {
	path := strings.ReplaceAll(windows, `\`, "/")
	if len(path) > 1 && path[1] == ':' {
		path = path[2:]
	}
	if windows != "" && path == "" {
		path = "/"
	}
	return path
}
