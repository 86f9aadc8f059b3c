package start

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Paths of Windows' hosts file, and of the directory of v1.TerminationMessagePathDefault, which Windows images lack.
const (
	windowsHosts    = `C:\Windows\System32\drivers\etc\hosts`
	windowsMessages = `C:\dev`
)

// windowsFiles is the variant of files for Windows, where single files cannot be mounted: it copies the hosts file into the container. The
// termination message goes to a directory mount, a volume or the container, and the runtime reads it after the exit.
func (r *Resolver) windowsFiles(p *v1.Pod, container *v1.Container, at pod.Attempt, in *pod.Inputs) error {
	if over(in.Mounts, windowsHosts) == nil {
		hosts, err := r.hosts(p, at)
		if err != nil {
			return err
		}
		file, err := r.writeFile(p, "etc-hosts", windowsHosts, []byte(strings.ReplaceAll(string(hosts), "\n", "\r\n")))
		if err != nil {
			return err
		}
		in.Files = append(in.Files, file)
	}
	target, err := podspec.WindowsPath(cmp.Or(container.TerminationMessagePath, v1.TerminationMessagePathDefault))
	if err != nil {
		return fmt.Errorf("terminationMessagePath: %w", err)
	}
	if m := over(in.Mounts, target); m != nil {
		if rest, _ := podspec.WindowsWithin(target, m.ContainerPath); rest != "" && !m.Copy && !podspec.IsPipe(m.HostPath) {
			in.TerminationRoot, in.TerminationLog = m.HostPath, rest
		}
		return nil
	}
	parent, name := target[:strings.LastIndex(target, `\`)], target[strings.LastIndex(target, `\`)+1:]
	below := slices.ContainsFunc(in.Mounts, func(m pod.Mount) bool { _, in := podspec.WindowsWithin(m.ContainerPath, parent); return in })
	if !strings.EqualFold(parent, windowsMessages) || below {
		if len(parent) > len("C:") {
			in.Files = append(in.Files, pod.File{ContainerPath: parent})
		}
		return nil
	}
	dir, err := r.parts.Volumes.MakeDir(p.UID, messageDir(container)+"/"+messageName(at.Number))
	if err != nil {
		return fmt.Errorf("cannot create termination log: %w", err)
	}
	r.dropMessages(p, container, at)
	in.Mounts = append(in.Mounts, pod.Mount{Name: "termination-log", HostPath: dir, ContainerPath: parent})
	in.TerminationRoot, in.TerminationLog = dir, name
	return nil
}

// over finds the innermost mount that contains a path of the container; nil: none.
func over(mounts []pod.Mount, path string) (found *pod.Mount) {
	for i := range mounts {
		if _, in := podspec.WindowsWithin(path, mounts[i].ContainerPath); in && (found == nil || len(mounts[i].ContainerPath) > len(found.ContainerPath)) {
			found = &mounts[i]
		}
	}
	return found
}
