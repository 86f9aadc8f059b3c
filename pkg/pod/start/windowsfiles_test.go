package start

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestWindowsFiles(t *testing.T) {
	mount := func(paths ...string) func(*v1.Pod) {
		return container(func(c *v1.Container) {
			for _, p := range paths {
				c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "v", MountPath: p})
			}
		})
	}
	message := func(path string) func(*v1.Pod) {
		return container(func(c *v1.Container) { c.TerminationMessagePath = path })
	}
	const hosts = `{/pods/u1/etc-hosts C:\Windows\System32\drivers\etc\hosts false}`
	const messages = "/pods/u1/containers/app/termination-2 termination-log"
	for _, test := range []struct {
		name   string
		pod    *v1.Pod
		files  string
		log    string // root and path
		mounts int
	}{
		{name: "common", pod: stagePod(), files: hosts, log: messages, mounts: 1},
		{name: "another slash and case", pod: stagePod(message(`c:\DEV\termination-log`)), files: hosts, log: messages, mounts: 1},
		{name: "own hosts", pod: stagePod(mount(`C:\windows\system32\drivers\etc`)), log: messages, mounts: 2},
		{name: "elsewhere", pod: stagePod(message("/app/logs/end")), files: hosts + ` { C:\app\logs false}`, log: " "},
		{name: "at the drive's root", pod: stagePod(message("/end")), files: hosts, log: " "},
		{name: "in a volume", pod: stagePod(mount(`C:\Data`), message("/data/x/end")), files: hosts, log: `/vol/v/0 x\end`, mounts: 1},
		{name: "a volume in its place", pod: stagePod(mount(`C:\dev\termination-log`)), files: hosts, log: " ", mounts: 1},
		{name: "a volume beside it", pod: stagePod(mount(`C:\dev\x`)), files: hosts + ` { C:\dev false}`, log: " ", mounts: 1},
	} {
		s := newStage(t)
		s.cfg.Platform.OS = "windows"
		in, err := s.resolver().Container(t.Context(), test.pod, &test.pod.Spec.Containers[0], inSandbox1)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		for i := range in.Mounts { // the stage puts the number of environment variables into the path
			if strings.HasPrefix(in.Mounts[i].HostPath, "/vol/v/") {
				in.TerminationRoot = strings.Replace(in.TerminationRoot, in.Mounts[i].HostPath, "/vol/v/0", 1)
			}
		}
		if got, log := strings.Trim(fmt.Sprint(in.Files), "[]"), in.TerminationRoot+" "+in.TerminationLog; got != test.files || log != test.log || len(in.Mounts) != test.mounts {
			t.Errorf("%s: got %s, %q and %d mounts; want %s, %q and %d", test.name, got, log, len(in.Mounts), test.files, test.log, test.mounts)
		}
	}
	s := newStage(t)
	s.cfg.Platform.OS = "windows"
	p := stagePod(func(p *v1.Pod) { p.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"db"}}} })
	if _, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1); err != nil {
		t.Fatal(err)
	}
	if got := s.files["etc-hosts"]; !strings.Contains(got, "10.1.0.5\tweb\r\n") || !strings.HasSuffix(got, "1.2.3.4\tdb\r\n") {
		t.Errorf("the hosts file is %q", got)
	}
	for path, want := range map[string]string{"relative": "is relative", "/a/../b": `must not contain ".."`, "/dev/nul": "name of a device", `C:\f:s`: "is not a file name"} {
		p := stagePod(message(path))
		if _, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1); err == nil || !strings.Contains(err.Error(), "terminationMessagePath: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	s.broken["dir"] = errors.New("disk full")
	if _, err := s.resolver().Container(t.Context(), stagePod(), &stagePod().Spec.Containers[0], inSandbox1); err == nil || !strings.Contains(err.Error(), "termination log: disk full") {
		t.Errorf("a full disk: %v", err)
	}
}
