package docker

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

const testPasswd = `root:x:0:0:root:/root:/bin/sh
# a comment

broken:x
app:x:1000:1000::/home/app:/bin/sh
big:x:99999999999:1::/:/bin/sh
`

const testGroup = `root:x:0:
adm:x:4:root,app
app:x:1000:
extra:x:50000:app
`

// TestAccounts: the image is read once, by a container that is then removed, even if a link leads to the file.
func TestAccounts(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	image := r.fake.AddImage(dockertest.Image{Names: []string{"people"}, User: "app", Files: map[string]string{
		"/etc/passwd": "-> ../lib/passwd", "/lib/passwd": testPasswd, "/etc/group": testGroup}})
	p := r.pod("groups", []string{"pause"}, []string{"pause"})
	p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsGroup: new(int64(7))}
	r.image = pod.Image{ID: image, Ref: "docker://" + image, User: "app"}
	r.run(p)
	for _, name := range []string{"c0", "c1"} {
		if c := r.container(p, name); c.User == nil || identity.FormatUser(c.User) != "1000:7:7,4,50000" {
			t.Errorf("%s runs as %+v", name, c.User)
		}
	}
	read := 0
	requests := r.fake.Requests(false)
	for _, request := range requests {
		if strings.HasSuffix(request, "/archive") {
			read++
		}
	}
	if read != 3 {
		t.Errorf("%d files read, want a link, passwd and group, once: %q", read, requests)
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "k8s_accounts") {
		t.Errorf("the container by which the image was read is left:\n%s", dump)
	}
}

// TestHoldersAreSwept: an agent that was killed while reading an image leaves a container; the next one removes it and nothing else.
func TestHoldersAreSwept(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	r.hold(identity.HoldAccounts, r.image.ID)
	r.run(r.pod("stays", []string{"pause"}))
	r.rebuild(ordinary)
	all, err := r.ObserveAll(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "k8s_accounts") {
		t.Errorf("left:\n%s", dump)
	}
}

func TestRuntimeClass(t *testing.T) {
	r := fakeRig(t, dockertest.Options{Version: "29.1.0", APIVersion: "1.52"}, nil)
	p := r.pod("strong", []string{"pause"})
	step := pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: "none", Runtime: "kata"}}
	err := r.Apply(t.Context(), p, step)
	if err == nil || !strings.Contains(err.Error(), `no runtime for RuntimeClass handler "kata" is configured: the engine has runc, runsc;`) {
		t.Errorf("an unknown handler: %v", err)
	}
	step.Sandbox.Runtime = "runsc"
	r.apply(p, step)
	if box := r.observed(p).Sandboxes[0]; box.Runtime != "runsc" {
		t.Errorf("sandbox: %+v", box)
	}
	info, err := r.Info(t.Context())
	if err != nil || !slices.Equal(info.Runtimes, []string{"runc", "runsc"}) || !r.RecursiveReadOnly() {
		t.Errorf("%+v, %v", info, err)
	}
}
