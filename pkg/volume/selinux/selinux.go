// Package selinux knows with which SELinux label a volume is mounted, so that a pod's containers may use it and no other container may (KEP-1710).
//
//	this host --Files--> label of containers' files --Label(pod, volume)--> label of the volume --Option--> option of mount(8)
package selinux

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// Files returns the label that the engine gives to containers' files on the host with that root directory, such as
// "system_u:object_r:container_file_t:s0"; "": the host has no SELinux. Docker reads the same files (github.com/opencontainers/selinux).
func Files(root string) string {
	if _, err := os.Stat(filepath.Join(root, "sys/fs/selinux/enforce")); err != nil {
		return ""
	}
	contexts, err := os.ReadFile(filepath.Join(root, "usr/share/containers/selinux/contexts"))
	if err != nil {
		config, _ := os.ReadFile(filepath.Join(root, "etc/selinux/config"))
		contexts, _ = os.ReadFile(filepath.Join(root, "etc/selinux", value(config, "SELINUXTYPE"), "contexts/lxc_contexts"))
	}
	if label := value(contexts, "file"); strings.Count(label, ":") >= fields-1 {
		return label
	}
	return ""
}

// value returns what a file has behind "name =", "" without it. It is pure.
func value(file []byte, name string) string {
	for line := range strings.Lines(string(file)) {
		if key, text, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == name {
			return strings.Trim(strings.TrimSpace(text), `"`)
		}
	}
	return ""
}

// fields is the number of fields of a label: user, role, type and level, which may have colons.
const fields = 4

// Label returns the label for a volume of p, from that of containers' files; "": it is mounted without one. It is pure.
//
// Without seLinuxOptions.level the engine chooses one for each container, which no one knows before. The error, in upstream's words, says
// that containers want different labels for the volume.
func Label(files string, p *v1.Pod, volume string) (string, error) {
	var labels []string
	for _, c := range podspec.Containers(p) {
		if !slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volume }) {
			continue
		}
		if o := options(p, c); o != nil {
			labels = append(labels, apply(files, *o))
		}
	}
	slices.Sort(labels)
	switch labels = slices.Compact(labels); {
	case len(labels) > 1:
		return "", fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
	case len(labels) == 0:
		return "", nil
	}
	if !form.MatchString(labels[0]) {
		return "", fmt.Errorf("seLinuxOptions make the label %q: want letters, digits and :.,_- in it", labels[0])
	}
	if sc := p.Spec.SecurityContext; sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive {
		return "", nil
	}
	return labels[0], nil
}

// form is the form of labels: no other character may end an option of mount(8).
var form = regexp.MustCompile(`^[A-Za-z0-9:.,_-]*$`)

// options returns the container's, or the pod's; nil: there are none.
func options(p *v1.Pod, c *v1.Container) *v1.SELinuxOptions {
	if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
		return c.SecurityContext.SELinuxOptions
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.SELinuxOptions
	}
	return nil
}

// apply returns the label of files that a process with these options may use: user and level are the process's, role and type those of files. It is
// pure.
func apply(files string, o v1.SELinuxOptions) string {
	if o.Level == "" {
		return ""
	}
	label := strings.SplitN(files, ":", fields)
	if o.User != "" {
		label[0] = o.User
	}
	label[fields-1] = o.Level
	return strings.Join(label, ":")
}

// Option returns the option of mount(8) for a label. Quotes keep a comma in it from ending the option. It is pure.
func Option(label string) string { return fmt.Sprintf("context=%q", label) }
