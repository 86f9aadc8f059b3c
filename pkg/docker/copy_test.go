package docker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
)

// TestCopies: on Windows files are in the container when it starts, and its message is read from where it wrote it.
func TestCopies(t *testing.T) {
	for _, build := range []int{14393, 17763, 20348, 26100} {
		r := fakeRig(t, dockertest.Options{OS: "windows", Build: build}, nil)
		r.fake.AddImage(dockertest.Image{Names: []string{testImage}, Entrypoint: []string{programPath}, Files: map[string]string{`C:\app\end`: strings.Repeat("m", 5000), `C:\app\link`: "-> C:\\x"}})
		image, _, err := r.Lookup(t.Context(), testImage)
		if err != nil {
			t.Fatal(err)
		}
		r.image = image
		p := r.pod("copies", []string{"exit", "1"})
		c, sandbox := &p.Spec.Containers[0], ""
		c.TerminationMessagePath = "/app/end"
		if r.cfg.Platform.SharedNetwork {
			sandbox = r.sandbox(p)
		}
		step := r.step(p, 0, sandbox)
		step.Inputs.Files = []pod.File{{HostPath: r.file("hosts", "127.0.0.1 localhost\r\n"), ContainerPath: `C:\Windows\System32\drivers\etc\hosts`}, {ContainerPath: `C:\app`}}
		step.Inputs.Mounts = []pod.Mount{{Name: "conf", HostPath: r.file("conf", "x=1"), ContainerPath: `C:\app\app.conf`, ReadOnly: true, Copy: true}}
		r.apply(p, step)
		copied := r.fake.Copied(r.container(p, "c0").ID)
		if copied[`C:\Windows\System32\drivers\etc\hosts`] != "127.0.0.1 localhost\r\n" || copied[`C:\app\app.conf`] != "x=1" || len(copied) != 3 {
			t.Errorf("%d: copied are %q", build, copied)
		}
		if c := r.exited(p, "c0"); c.Message != strings.Repeat("m", 4096) {
			t.Errorf("%d: the message has %d bytes", build, len(c.Message))
		}
	}
}

func TestCopyRefusals(t *testing.T) {
	r := fakeRig(t, dockertest.Options{OS: "windows", Build: 17763}, nil)
	p := r.pod("refusals", []string{"pause"})
	step := r.step(p, 0, r.sandbox(p))
	for path, want := range map[string]string{`D:\f`: "not on drive C", `C:\a\..\b`: `must not contain ".."`, `C:\gone`: "no such file"} {
		step.Inputs.Files = []pod.File{{HostPath: filepath.Join(r.dir, "gone"), ContainerPath: path}}
		var apply *engine.ApplyError
		err := r.Apply(t.Context(), p, step)
		if path == `C:\gone` && errors.Is(err, os.ErrNotExist) {
			continue // each system has its own wording
		}
		if !errors.As(err, &apply) || apply.Reason != engine.ReasonCreate || !strings.Contains(apply.Message, want) {
			t.Errorf("%s: %v; want %q", path, err, want)
		}
	}
	step.Inputs.Files = nil
	r.apply(p, step) // an incomplete container is replaced
	if c := r.container(p, "c0"); c.State != pod.Running {
		t.Errorf("%+v", c)
	}
}
