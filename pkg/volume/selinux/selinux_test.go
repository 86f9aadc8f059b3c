package selinux_test

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume/selinux"
)

const fedora = "system_u:object_r:container_file_t:s0"

// TestFiles: the label is read from where Docker reads it, and there is none on a host without SELinux.
func TestFiles(t *testing.T) {
	const contexts = "process = \"system_u:system_r:container_t:s0\"\ncontent = \"system_u:object_r:virt_var_lib_t:s0\"\nfile = \"" + fedora + "\"\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no SELinux":      {map[string]string{"usr/share/containers/selinux/contexts": contexts}, ""},
		"containers":      {map[string]string{"sys/fs/selinux/enforce": "1", "usr/share/containers/selinux/contexts": contexts}, fedora},
		"policy":          {map[string]string{"sys/fs/selinux/enforce": "0", "etc/selinux/config": "# SELINUXTYPE=\nSELINUX=enforcing\nSELINUXTYPE=targeted\n", "etc/selinux/targeted/contexts/lxc_contexts": contexts}, fedora},
		"no containers":   {map[string]string{"sys/fs/selinux/enforce": "1", "etc/selinux/config": "SELINUXTYPE=targeted\n"}, ""},
		"not a label":     {map[string]string{"sys/fs/selinux/enforce": "1", "usr/share/containers/selinux/contexts": "file = \"x\"\n"}, ""},
		"no such setting": {map[string]string{"sys/fs/selinux/enforce": "1", "usr/share/containers/selinux/contexts": "profile = \"" + fedora + "\"\n"}, ""},
	} {
		root := t.TempDir()
		for file, content := range test.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := selinux.Files(root); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestLabel: a volume has the label that all its containers agree on.
func TestLabel(t *testing.T) {
	mounts := []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	with := func(o *v1.SELinuxOptions) v1.Container {
		return v1.Container{VolumeMounts: mounts, SecurityContext: &v1.SecurityContext{SELinuxOptions: o}}
	}
	level := func(l string) *v1.SELinuxOptions { return &v1.SELinuxOptions{Level: l} }
	recursive, mount := v1.SELinuxChangePolicyRecursive, v1.SELinuxChangePolicyMountOption
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	for name, test := range map[string]struct {
		spec       v1.PodSpec
		want, fail string
	}{
		"no options":           {v1.PodSpec{Containers: []v1.Container{{VolumeMounts: mounts}}}, "", ""},
		"the pod's":            {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SELinuxOptions: level("s0:c1,c2")}, Containers: []v1.Container{{VolumeMounts: mounts}}}, label, ""},
		"the container's":      {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SELinuxOptions: level("s0:c8")}, Containers: []v1.Container{with(level("s0:c1,c2"))}}, label, ""},
		"a process type":       {v1.PodSpec{Containers: []v1.Container{with(&v1.SELinuxOptions{User: "u", Role: "r", Type: "my_t", Level: "s0:c1,c2"})}}, "u:object_r:container_file_t:s0:c1,c2", ""},
		"no level":             {v1.PodSpec{Containers: []v1.Container{with(&v1.SELinuxOptions{Type: "my_t"})}}, "", ""},
		"an injection":         {v1.PodSpec{Containers: []v1.Container{with(level(`s0",suid,context="x`))}}, "", `seLinuxOptions make the label "system_u:object_r:container_file_t:s0\",suid,context=\"x": want letters, digits and :.,_- in it`},
		"another volume":       {v1.PodSpec{Containers: []v1.Container{with(level("s0:c1,c2")), {VolumeMounts: []v1.VolumeMount{{Name: "w"}}, SecurityContext: &v1.SecurityContext{SELinuxOptions: level("s0:c8")}}}}, label, ""},
		"an init container":    {v1.PodSpec{InitContainers: []v1.Container{with(level("s0:c8"))}, Containers: []v1.Container{with(level("s0:c1,c2"))}}, "", "multiple SELinux labels found: " + label + ",system_u:object_r:container_file_t:s0:c8"},
		"one has no level":     {v1.PodSpec{Containers: []v1.Container{with(level("s0:c1,c2")), with(&v1.SELinuxOptions{Type: "t"})}}, "", "multiple SELinux labels found: ," + label},
		"one has no options":   {v1.PodSpec{Containers: []v1.Container{with(level("s0:c1,c2")), {VolumeMounts: mounts}}}, label, ""}, // as in upstream
		"recursive":            {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SELinuxOptions: level("s0:c1,c2"), SELinuxChangePolicy: &recursive}, Containers: []v1.Container{{VolumeMounts: mounts}}}, "", ""},
		"by the mount's label": {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SELinuxOptions: level("s0:c1,c2"), SELinuxChangePolicy: &mount}, Containers: []v1.Container{{VolumeMounts: mounts}}}, label, ""},
	} {
		got, err := selinux.Label(fedora, &v1.Pod{Spec: test.spec}, "v")
		if got != test.want || err != nil && err.Error() != test.fail || err == nil && test.fail != "" {
			t.Errorf("%s: %q, %v; want %q, %s", name, got, err, test.want, test.fail)
		}
	}
	if got, want := selinux.Option(label), `context="system_u:object_r:container_file_t:s0:c1,c2"`; got != want {
		t.Errorf("option %s, want %s", got, want)
	}
}
