// Package links follows the links by which drivers on Windows put volumes into pods' directories, and says what an engine can mount of them.
//
//	path, link by link -> End -> Mountable -> the engine
//
// Windows has no bind mounts: a CSI or flexVolume driver makes a link at the path that it is given. It leads to a directory, a share (SMB) or a
// volume without a drive letter. All here is pure: what links lead to comes from a Reader.
package links

import (
	"errors"
	"fmt"
	"strings"
)

// Reader returns what the link at path leads to, as it is written there; false: there is no link, or nothing at all. It follows no link at path itself.
type Reader func(path string) (target string, ok bool, err error)

// End is where a path leads when all links are followed.
type End struct {
	// Path is on a drive and has no link in it. With Outside it is the path by which the host gets there: the last link, and what follows it.
	Path string
	// Outside is the share, volume or device that the last link leads to, and what follows the link; "": the path stays on drives.
	Outside string
}

// most is how many links a path may lead through.
const most = 40

// Follow returns where path leads. It reads no link behind a share, which may not answer.
func Follow(read Reader, path string) (End, error) {
	at, err := parse(path, place{})
	if err != nil {
		return End{}, err
	}
	if at.outside {
		return End{Path: path, Outside: at.String()}, nil
	}
	seen := 0
	for i := 1; i <= len(at.elements); i++ {
		link := at.first(i).String()
		target, ok, err := read(link)
		if err != nil {
			return End{}, fmt.Errorf("cannot read the link %s: %w", link, err)
		}
		if !ok {
			continue
		}
		if seen++; seen > most {
			return End{}, fmt.Errorf("%s leads through more than %d links", path, most)
		}
		to, err := parse(target, at.first(i-1))
		if err != nil {
			return End{}, fmt.Errorf("link %s: %w", link, err)
		}
		to = to.and(at.elements[i:])
		if to.outside {
			return End{Path: at.String(), Outside: to.String()}, nil
		}
		at, i = to, 0
	}
	return End{Path: at.String()}, nil
}

// String is where the end is.
func (e End) String() string {
	if e.Outside != "" {
		return e.Outside
	}
	return e.Path
}

// Within reports whether e is dir or below it.
func (e End) Within(dir End) bool {
	return (e.Outside == "") == (dir.Outside == "") && Below(e.String(), dir.String())
}

// Below reports whether path is dir or below it, in any case of letters. Neither may have links in it.
func Below(path, dir string) bool {
	p, errP := parse(path, place{})
	d, errD := parse(dir, place{})
	if errors.Join(errP, errD) != nil || !strings.EqualFold(p.root, d.root) || len(p.elements) < len(d.elements) {
		return false
	}
	for i, element := range d.elements {
		if !strings.EqualFold(element, p.elements[i]) {
			return false
		}
	}
	return true
}

// Builds of Windows that engines can mount more on than before.
const (
	build1709 = 16299
	build1803 = 17134
)

// Mountable says why an engine on that build of Windows cannot show a container the end at inside, a path of the container; nil: it can.
//
// Before 1709 nothing behind a link appears in a directory of a container, only as a drive (moby/moby#34729), and shares not at all
// (kubernetes/kubernetes#52469). The root of a drive appears in no directory on 1709 either (moby/moby#35436).
func (e End) Mountable(build int, inside string) error {
	drive := len(strings.TrimRight(inside, `\/`)) == len("G:")
	switch {
	case build < build1709 && e.share():
		return fmt.Errorf("it leads to the share %s, which containers can use from Windows Server version 1709 (build %d) on; this host has %d", e.Outside, build1709, build)
	case build < build1709 && e.Outside != "" && !drive:
		return fmt.Errorf(`it leads to %s, which this Windows (build %d) shows containers as a drive only; want a mountPath like G:\ (moby/moby#34729)`, e.Outside, build)
	case build < build1803 && e.Outside == "" && len(e.Path) == len(`D:\`) && !drive:
		return fmt.Errorf(`it leads to the drive %s, which this Windows (build %d) shows containers as a drive only; want a mountPath like G:\ (moby/moby#35436)`, e.Path, build)
	}
	return nil
}

func (e End) share() bool {
	return strings.HasPrefix(e.Outside, `\\`) && !strings.HasPrefix(e.Outside, `\\?\`)
}

// place is an absolute path in its parts.
type place struct {
	root     string // `C:\`, "/" (in tests on Linux), `\\server\share\` or `\\?\Volume{...}\`
	outside  bool   // root is no drive
	elements []string
}

func (p place) String() string {
	if p.root == "/" {
		return p.root + strings.Join(p.elements, "/")
	}
	return p.root + strings.Join(p.elements, `\`)
}

// first is p with its first n elements.
func (p place) first(n int) place { return place{p.root, p.outside, p.elements[:n]} }

// and returns p with more elements. ".." is taken as Windows takes it, without a look at what is there.
func (p place) and(elements []string) place {
	out := place{p.root, p.outside, append([]string{}, p.elements...)}
	for _, e := range elements {
		switch e {
		case "", ".":
		case "..":
			out.elements = out.elements[:max(0, len(out.elements)-1)]
		default:
			out.elements = append(out.elements, e)
		}
	}
	return out
}

// parse reads a path, or what a link in the directory dir leads to. On Linux links of tests may lead to shares.
func parse(path string, dir place) (place, error) {
	if strings.HasPrefix(path, "/") && (dir.root == "/" || dir.root == "") {
		return place{root: "/"}.and(strings.Split(path, "/")), nil
	}
	if dir.root == "/" && !strings.HasPrefix(path, `\\`) {
		return dir.and(strings.Split(path, "/")), nil
	}
	s := strings.ReplaceAll(path, "/", `\`)
	for _, prefix := range []string{`\\?\`, `\??\`, `\\.\`} {
		rest, ok := strings.CutPrefix(s, prefix)
		switch {
		case !ok:
		case len(rest) > 1 && rest[1] == ':':
			s = rest
		case len(rest) > 4 && strings.EqualFold(rest[:4], `UNC\`):
			s = `\\` + rest[4:]
		default:
			device, below, _ := strings.Cut(rest, `\`)
			if device == "" {
				return place{}, fmt.Errorf("%q is no path of a device", path)
			}
			return place{root: `\\?\` + device + `\`, outside: true}.and(strings.Split(below, `\`)), nil
		}
		if ok {
			break
		}
	}
	switch {
	case strings.HasPrefix(s, `\\`):
		parts := strings.Split(strings.TrimLeft(s, `\`), `\`)
		if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
			return place{}, fmt.Errorf(`%q is no share; want \\server\share`, path)
		}
		return place{root: `\\` + parts[0] + `\` + parts[1] + `\`, outside: true}.and(parts[2:]), nil
	case len(s) > 1 && s[1] == ':' && letter(s[0]):
		if len(s) > 2 && s[2] != '\\' {
			return place{}, fmt.Errorf("%q is relative to the current directory of a drive; want an absolute path", path)
		}
		return place{root: strings.ToUpper(s[:1]) + `:\`}.and(strings.Split(s[2:], `\`)), nil
	case dir.root == "":
		return place{}, fmt.Errorf("%q is no absolute path", path)
	case strings.HasPrefix(s, `\`):
		return dir.first(0).and(strings.Split(s, `\`)), nil
	}
	return dir.and(strings.Split(s, `\`)), nil
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
