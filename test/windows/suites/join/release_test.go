package join

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
)

// TestRelease takes a server through docs/guides/install.md with zip archives of hack/release: it joins with the programs of one, serves samples of it, is
// upgraded to another version and taken back with no container restarted, and leaves with nothing left. The programs in the archives are built for Wine; the
// rest is what make release puts there. The calls are those of Install-Node.ps1, which TestPage of package programs reads from it. WINKUBE_OLDER names the
// commit of the older archive; without it that has this checkout's programs.
func TestRelease(t *testing.T) {
	if os.Getenv("WINKUBE_ZIP") == "" {
		t.Skip("it takes more than a minute: only with WINKUBE_ZIP=1, as make test-windows has it")
	}
	onServer(t, servers[len(servers)-1], func(m *member) {
		m.boot()
		m.named()
		m.forgetAtEnd()
		tool := filepath.Join(m.TempDir(), "release")
		m.runs(cluster.Root, nil, "go", "build", "-o", tool, "./hack/release")
		root, programs, version := m.older(os.Getenv("WINKUBE_OLDER"))
		m.unpack(`C:\older`, tool, root, programs, version)
		archive := m.unpack(`C:\newer`, tool, cluster.Root, filepath.Join(bin, "newer"), newer)
		m.joinsFrom(`C:\older`)
		m.servesSamples(`C:\older`)
		kept := m.containers()
		m.staysWhole(version, archive, `C:\half`)
		m.changesTo(newer, `C:\newer`, "upgrade", "version "+newer+" now runs instead of the previous one")
		m.staysNewer(`C:\older`)
		m.changesTo(version, `C:\newer`, "rollback", "the previous version runs again")
		if after := m.containers(); !slices.Equal(kept, after) || len(kept) == 0 {
			m.Errorf("containers before: %v\nafter: %v", kept, after)
		}
		m.did("zip: containers kept over both", strconv.Itoa(len(kept)))
		m.leavesZip()
	})
}

// runs runs a program on this machine, in a directory.
func (m *member) runs(dir string, env []string, argv ...string) {
	m.Helper()
	cmd := exec.CommandContext(m.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if said, err := output.Of(cmd); err != nil {
		m.Fatalf("%q: %v: %s", argv, err, said)
	}
}

// older returns the checkout, the programs and the version of the older archive: those of a commit, or "" for this checkout's.
func (m *member) older(commit string) (root, programs, version string) {
	m.Helper()
	if commit == "" {
		text, err := os.ReadFile(filepath.Join(cluster.Root, "hack/VERSION"))
		if err != nil {
			m.Fatal(err)
		}
		return cluster.Root, bin, strings.TrimSpace(string(text))
	}
	begin, dir := time.Now(), m.TempDir()
	root, programs, version = filepath.Join(dir, "checkout"), filepath.Join(dir, "programs"), "0.0.1"
	m.runs(cluster.Root, nil, "git", "worktree", "add", "--detach", "--quiet", root, commit)
	m.Cleanup(func() {
		if err := exec.CommandContext(context.Background(), "git", "-C", cluster.Root, "worktree", "remove", "--force", root).Run(); err != nil {
			m.Error(err)
		}
	})
	overlay, err := rig.Overlay(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	for _, one := range [][2]string{{"kubelet.exe", "./cmd/kubelet"}, {"proxy.exe", "./cmd/kube-proxy"}} { // with the flags of hack/build.sh, and Wine's overlay
		m.runs(root, []string{"GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace", "-overlay="+overlay,
			"-ldflags=-s -w -X github.com/winkube/winkube/pkg/daemon.Version="+version, "-o", filepath.Join(programs, one[0]), one[1])
	}
	m.did("zip: programs of commit "+commit, seconds(time.Since(begin)))
	return root, programs, version
}

// unpack has tool, which is hack/release, make a zip archive of programs in a checkout. It compares its sum with SHA256SUMS and unpacks it into a directory, as an
// administrator does, and returns the archive's path.
func (m *member) unpack(to, tool, root, programs, version string) string {
	m.Helper()
	begin := time.Now()
	out := filepath.Join(m.TempDir(), "release")
	m.runs(root, nil, tool, "-dirty", "-only=zip", "-programs="+programs, "-version="+version, "-out="+out)
	name := "winkube-" + version + "-windows-amd64.zip"
	data, err := os.ReadFile(filepath.Join(out, name))
	if err != nil {
		m.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	if sum := sha256.Sum256(data); err != nil || !strings.Contains("\n"+string(sums), "\n"+hex.EncodeToString(sum[:])+"  "+name+"\n") {
		m.Fatalf("%v: the sums are\n%s", err, sums)
	}
	archive, err := zip.OpenReader(filepath.Join(out, name))
	if err != nil {
		m.Fatal(err)
	}
	defer archive.Close()
	for _, f := range archive.File {
		if !filepath.IsLocal(f.Name) {
			m.Fatalf("the archive has %q", f.Name)
		}
		m.extract(f, to)
	}
	m.did("zip of "+version+": made, unpacked", fmt.Sprintf("%d files, %s", len(archive.File), seconds(time.Since(begin))))
	return filepath.Join(out, name)
}

// staysWhole: half of the newer archive, as a download that was cut off leaves it, replaces nothing. libarchive's bsdtar unpacks it, which Windows has
// as tar.exe. It names the fault, and leaves the files before the cut.
func (m *member) staysWhole(version, archive, to string) {
	m.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		m.Fatal(err)
	}
	dir := m.TempDir()
	half := filepath.Join(dir, "half.zip")
	if err := os.WriteFile(half, data[:len(data)/2], 0o644); err != nil {
		m.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(filepath.Dir(archive), "SHA256SUMS"))
	if sum := sha256.Sum256(data[:len(data)/2]); err != nil || strings.Contains(string(sums), hex.EncodeToString(sum[:])) {
		m.Errorf("%v: half an archive has a sum of the whole one's", err)
	}
	if _, err := zip.OpenReader(half); err == nil {
		m.Error("half an archive has a directory of its files")
	}
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		m.Fatal(err)
	}
	said, err := output.Of(exec.CommandContext(m.Context(), "bsdtar", "-xf", half, "-C", files))
	if err == nil || strings.TrimSpace(said.Stderr) == "" {
		m.Errorf("bsdtar unpacks half an archive: %v: %s", err, said)
	}
	m.Logf("bsdtar: %s", said.Stderr)
	if err := m.Own(m.Path(to)); err != nil {
		m.Fatal(err)
	}
	for _, one := range services {
		program, err := os.ReadFile(filepath.Join(files, one.exe))
		if err != nil {
			continue // behind the cut
		}
		if err := m.WriteProgram(m.Path(to+`\`+one.exe), program); err != nil {
			m.Fatal(err)
		}
		whole, err := os.ReadFile(m.Path(`C:\newer\` + one.exe))
		if err != nil {
			m.Fatal(err)
		}
		if bytes.Equal(program, whole) {
			continue
		}
		said, err := m.Finish(m.agentAt(to+`\`+one.exe, []string{"service", "upgrade"})) // it has its length, and zeros behind the cut
		if err == nil {
			m.Errorf("a part of %s as an upgrade: %s", one.exe, said)
		}
		m.Logf("a part of %s: %v: %.300s", one.exe, err, said.Stderr)
	}
	m.run(version)
	m.did("zip: half an archive", "refused")
}

// run wants both services' programs in a version.
func (m *member) run(version string) {
	m.Helper()
	for _, one := range services {
		said, err := m.Finish(m.Command(m.Context(), `C:\k\`+one.exe, "--version=full"))
		if text := strings.ReplaceAll(said.Stdout, "\r", ""); err != nil || !strings.Contains(text, "\nwinkube "+version+"\n") {
			m.Errorf("%s prints %q, %v; want version %s", one.exe, text, err, version)
		}
	}
}

func (m *member) extract(f *zip.File, to string) {
	m.Helper()
	from, err := f.Open()
	if err != nil {
		m.Fatal(err)
	}
	defer from.Close()
	data, err := io.ReadAll(from) // it compares the file's own sum
	if err != nil {
		m.Fatalf("%s: %v", f.Name, err)
	}
	path := m.Path(to + `\` + strings.ReplaceAll(f.Name, "/", `\`))
	if err := m.Own(filepath.Dir(path)); err != nil {
		m.Fatal(err)
	}
	if err := m.WriteProgram(path, data); err != nil {
		m.Fatal(err)
	}
}

// joinsFrom makes the host a node with the programs of a directory. Before, it does not with half a program, which changes nothing.
func (m *member) joinsFrom(dir string) {
	m.Helper()
	whole, err := os.ReadFile(m.Path(dir + `\proxy.exe`))
	if err != nil {
		m.Fatal(err)
	}
	if err := m.WriteProgram(m.Path(dir+`\proxy.exe`), whole[:len(whole)/2]); err != nil {
		m.Fatal(err)
	}
	said, err := m.Finish(m.joinCommand(dir+`\kubelet.exe`, nil, nil))
	if err == nil || !m.oneLine(said, `proxy.exe does not run on this host: check the sum of the archive and unpack it again`) {
		m.Errorf("with half a proxy.exe: %v: %s", err, said)
	}
	if _, err := os.Stat(m.Path(`C:\k`)); err == nil {
		m.Error(`with half a proxy.exe there is C:\k`)
	}
	if err := m.WriteProgram(m.Path(dir+`\proxy.exe`), whole); err != nil {
		m.Fatal(err)
	}
	begin := time.Now()
	said, err = m.Finish(m.joinCommand(dir+`\kubelet.exe`, nil, nil))
	if !strings.Contains(said.Stdout, "Node "+m.host.Name+": Ready") { // its doctor finds what Wine lacks
		m.Fatalf("kubelet.exe node join: %v: %s", err, said)
	}
	m.podCIDR = m.rangeOfNode()
	m.Logf("%s", said.Stdout)
	m.did("zip: node join to Node Ready", seconds(time.Since(begin)))
}

// oneLine says whether a program wrote one line to standard error, with want in it. Lines of Wine do not count: Windows writes none.
func (m *member) oneLine(said output.Said, want string) bool {
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(said.Stderr), "\n"), func(line string) bool { return strings.HasPrefix(line, "wine: ") })
	return len(lines) == 1 && strings.Contains(lines[0], want)
}

// servesSamples applies samples of the archive, and wants their Services on the node.
func (m *member) servesSamples(dir string) {
	m.Helper()
	m.namespace("release")
	for _, name := range []string{"deployment.yaml", "iis.yaml"} {
		text, err := os.ReadFile(m.Path(dir + `\build\samples\` + name))
		if err != nil {
			m.Fatal(err)
		}
		m.apply(nodePorts.ReplaceAllString(forWindows(string(text), m.host.Name, m.Build), "nodePort: 319")) // beside those of TestJoin
	}
	m.until(2*time.Minute, "4 pods Ready", func(context.Context) error { return m.podsReady(4, 0) })
	m.services()
	m.did("zip: its samples served", "4 pods")
}

var nodePorts = regexp.MustCompile(`nodePort: \d{3}`)

// changesTo changes the version of both services by the programs of a directory. The Node stays, and its Services are served.
func (m *member) changesTo(version, dir, verb, want string) {
	m.Helper()
	begin := time.Now()
	for _, one := range services {
		m.doesWith(dir+`\`+one.exe, want, verb)
	}
	m.until(3*time.Minute, "Node Ready after "+verb, func(context.Context) error { return m.ready(begin) })
	m.run(version)
	m.services()
	pods, err := watched.Pods().Lister().Pods(m.space).List(labels.Everything())
	if err != nil {
		m.Fatal(err)
	}
	for _, pod := range pods {
		if slices.ContainsFunc(pod.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return s.RestartCount > 0 }) {
			m.Errorf("pod %s restarted: %+v", pod.Name, pod.Status.ContainerStatuses)
		}
	}
	m.did("zip: service "+verb+" of both, Node Ready", seconds(time.Since(begin)))
}

// staysNewer: an older version does not take the newer one's place.
func (m *member) staysNewer(older string) {
	m.Helper()
	for _, one := range services {
		said, err := m.Finish(m.agentAt(older+`\`+one.exe, []string{"service", "upgrade"}))
		if err == nil || !m.oneLine(said, "has version "+newer+", which is newer than") {
			m.Errorf("an older %s as an upgrade: %v: %s", one.exe, err, said)
		}
	}
	m.did("zip: older version over newer", "refused")
}

// leavesZip has the host leave twice, while pods run, with nothing left.
func (m *member) leavesZip() {
	m.Helper()
	begin := time.Now()
	leave := m.guided(`.\kubelet.exe node leave`)
	for _, args := range [][]string{leave, append(leave, "--remove-data")} {
		said, err := m.Finish(m.agentAt(`C:\older\kubelet.exe`, args))
		if err != nil {
			m.Fatalf("kubelet.exe node leave: %v: %s", err, said)
		}
		m.Logf("%s", said.Stdout)
	}
	m.did("zip: node leave, twice", seconds(time.Since(begin)))
	if list, err := m.host.Engine().Containers(m.Context()); err != nil || len(list) > 0 {
		m.Errorf("%d containers are left, %v", len(list), err)
	}
	for _, one := range services {
		if path, err := m.Registry(m.Context(), `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Services\`+one.name, "ImagePath"); err == nil {
			m.Errorf("the service %s is left, with %s", one.name, path)
		}
	}
	for _, dir := range []string{`C:\k`, `C:\var\lib\kubelet`, `C:\var\log\kubelet`, `C:\var\log\kube-proxy`} {
		if entries, err := os.ReadDir(m.Path(dir)); err == nil {
			m.Errorf("%s is left, with %v", dir, entries)
		}
	}
	m.nothingLeft()
	m.did("zip: nothing left", "ok")
}
