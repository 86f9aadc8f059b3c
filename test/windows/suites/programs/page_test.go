package programs

import (
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/test/windows/rig"
)

var update = flag.Bool("update", false, "write what the programs print into docs/guides/windows.md, and golden states")

// page is docs/guides/windows.md.
const page = "../../../../docs/guides/windows.md"

// block is commands of the page, and below them what they print.
type block struct {
	commands  []string
	want      string // what the page says that they print
	got       string // what they print
	at, until int    // where want stands in the page; 0: it says nothing
}

var blocks = regexp.MustCompile("(?ms)^```powershell\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?")

// parsePage finds the commands: a line each, without comments, those that end with ` joined to the next.
func parsePage(text string) (out []block) {
	for _, m := range blocks.FindAllStringSubmatchIndex(text, -1) {
		b := block{}
		if m[4] >= 0 {
			b.want, b.at, b.until = text[m[4]:m[5]], m[4], m[5]
		}
		joined := regexp.MustCompile("`\n\\s*").ReplaceAllString(text[m[2]:m[3]], "")
		for line := range strings.Lines(joined) {
			line, _, _ = strings.Cut(line, " #")
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				b.commands = append(b.commands, line)
			}
		}
		out = append(out, b)
	}
	return out
}

// notRun are commands of PowerShell and of Windows itself, which Wine has not; hack/powershell.sh parses them.
var notRun = []string{"Install-WindowsFeature ", "Get-Service ", "Get-EventLog ", `.\collect-logs.ps1`, `.\Remove-Node.ps1`}

// ownFlags keep programs that run on this machine from each other's ports.
var ownFlags = map[string][]string{
	"kubelet.exe": {"--port=0", "--healthz-port=0", "--address=127.0.0.1", "--hostname-override=win1"},
	"proxy.exe": {"--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0", "--bind-address=127.0.0.1", "--network-mode=upstream",
		"--hostname-override=win1"},
}

// volatile is what differs from run to run and from host to host; the page leaves it out too.
var volatile = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n`), ""},                             // logged: that credentials of the test go over a connection without TLS
	{regexp.MustCompile(`(?m)^\S+: note: this service manager has no .*\n`), ""}, // Wine's
	{regexp.MustCompile(`version \d\S* now runs`), "version V now runs"},
	{regexp.MustCompile(`(?m)^(PROCESS +)\d+$`), "${1}N"},
	{regexp.MustCompile(`\d+ processors and \d+ GiB`), "N processors and N GiB"},
	{regexp.MustCompile(`(?m)^\w+ +\d+% of the disk are free at (.*?)(: below .*\n +fix: .*)?$`), "ok     N% of the disk are free at $1"},
	{regexp.MustCompile(`(?s)(ok     this runs with the rights to change the network\n).*`), "$1...\n"}, // the machine's adapters and routes
}

// plain is what a program printed without what varies and what the test added.
func plain(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = regexp.MustCompile(`(?m)^ +(`+strings.Join(slices.Concat(ownFlags["kubelet.exe"], ownFlags["proxy.exe"]), "|")+`)\n`).ReplaceAllString(text, "")
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return text
}

// TestPage goes through the page from top to bottom on each Windows Server, and holds it to what the programs print. WINKUBE_WINDOWS names one
// of them, as in package join.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-windows runs it")
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, build := range rig.Builds {
		if only := os.Getenv("WINKUBE_WINDOWS"); only != "" && only != strconv.Itoa(build) || *update && build != server2022 {
			continue
		}
		t.Run(strconv.Itoa(build), func(t *testing.T) {
			t.Parallel()
			walkPage(t, string(data), build)
		})
	}
}

func walkPage(t *testing.T, text string, build int) {
	_, p := simulated(t, build)
	layOut(t, p)
	w := &walk{T: t, Prefix: p}
	defer w.stop()
	text = w.forBuild(text)
	all := parsePage(text)
	for i := range all {
		all[i].got = w.through(all[i])
	}
	for _, b := range slices.Backward(all) { // from the end: places in the text before stay
		if b.until > 0 && *update {
			text = text[:b.at] + b.got + text[b.until:]
		} else if b.until > 0 && b.got != b.want {
			t.Errorf("%q print\n%s\nthe page has\n%s", b.commands, b.got, b.want)
		}
	}
	if w.ran < 19 || w.skipped > 8 {
		t.Errorf("%d calls were made, %d commands are Windows' own: the page is not read as it should be", w.ran, w.skipped)
	}
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// stop ends what the page leaves running, before the servers that it speaks to.
func (w *walk) stop() {
	for _, name := range []string{"kubelet.exe", "proxy.exe"} {
		w.run([]string{`C:\k\` + name, "service", "stop"})
	}
}

// forBuild is the page, which shows Server 2022, as the administrator of another Server has it: with its pause image, of which 2016 has none,
// and its name.
func (w *walk) forBuild(text string) string {
	w.Helper()
	if w.Build == server2022 {
		return text
	}
	const key = `HKEY_LOCAL_MACHINE\Software\Microsoft\Windows NT\CurrentVersion`
	name, err := w.Registry(w.Context(), key, "ProductName")
	revision, numberErr := w.Registry(w.Context(), key, "UBR")
	if err = errors.Join(err, numberErr); err != nil {
		w.Fatal(err)
	}
	number, err := strconv.ParseInt(revision, 0, 32)
	if err != nil {
		w.Fatal(err)
	}
	text = thisIs.ReplaceAllString(text, fmt.Sprintf("this is %s, 10.0.%d.%d,", name, w.Build, number))
	if w.Build < 16299 { // 1709, from which on containers share a network
		text = regexp.MustCompile("(?m)( -KubeletFlags)? '--pod-infra-container-image=pause:20348'|^ok     the pause image .*\n").ReplaceAllString(text, "")
	}
	return strings.ReplaceAll(text, "pause:20348", fmt.Sprintf("pause:%d", w.Build))
}

var thisIs = regexp.MustCompile(`this is Windows Server 2022 Datacenter, 10\.0\.20348\.\d+,`)

// walk goes through the page's commands.
type walk struct {
	*testing.T
	*rig.Prefix
	ran, skipped int
}

// through runs a block and returns what it prints.
func (w *walk) through(b block) string {
	w.Helper()
	var printed strings.Builder
	for _, line := range b.commands {
		if slices.ContainsFunc(notRun, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			w.skipped++
			continue
		}
		for _, call := range callsIn(w.T, line) {
			w.ran++
			printed.WriteString(w.run(call))
		}
	}
	return plain(printed.String())
}

// callsIn are the calls of our programs in one line of the page: itself, or those of the script that it names.
func callsIn(t *testing.T, line string) [][]string {
	words := regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1)
	for i := range words {
		words[i] = strings.Trim(words[i], "'")
	}
	if strings.HasSuffix(words[0], ".exe") {
		return [][]string{words}
	}
	name, isScript := strings.CutPrefix(words[0], `.\`)
	source, err := os.ReadFile(filepath.Join("../../../../build/windows", name))
	if !isScript || err != nil {
		t.Fatalf("%q is neither a call of our programs nor known as Windows' own: %v", line, err)
	}
	given := map[string][]string{"Programs": {`C:\new`}}
	for i := 1; i < len(words); i++ {
		value := []string{"true"} // a switch
		if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") || words[i] == "-KubeletFlags" {
			value = []string{words[i+1]}
			i++
			given[strings.TrimPrefix(words[i-1], "-")] = value
			continue
		}
		given[strings.TrimPrefix(words[i], "-")] = value
	}
	return callsOf(t, string(source), given)
}

// run runs one of our programs.
func (w *walk) run(call []string) string {
	w.Helper()
	exe, args := call[0], call[1:]
	if len(args) > 2 && args[0] == "service" && args[1] == "install" {
		args = slices.Concat(args, ownFlags[exe[strings.LastIndex(exe, `\`)+1:]])
	}
	said, err := w.Finish(w.Command(w.Context(), exe, args...))
	if err != nil && args[0] != "doctor" { // which finds that Wine has no containers
		w.Errorf("%q: %v: %s", call, err, said)
	}
	return said.Stdout + said.Stderr
}

// layOut gives the prefix what the page takes for given: Docker, an API server, programs and credentials in C:\k, and newer programs in C:\new.
func layOut(t *testing.T, p *rig.Prefix) {
	t.Helper()
	engine := dockertest.New(dockertest.Options{OS: "windows", Build: p.Build})
	engine.AddImage(dockertest.Image{Names: []string{fmt.Sprintf("pause:%d", p.Build)}, OSVersion: fmt.Sprintf("10.0.%d.1", p.Build)})
	stop, err := p.Relay(t.Context(), rig.DockerPipe, serveEngine(t, engine, nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	api := newAPI(t)
	other := httptest.NewTLSServer(nil) // for its certificate
	other.Close()
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", api.URL)
	files := map[string]string{"kubelet.conf": kubeconfig, "proxy.conf": kubeconfig,
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw}))}
	for _, name := range []string{"kubelet.exe", "proxy.exe"} {
		program, err := os.ReadFile(filepath.Join("../../../../_output/bin/windows/amd64", name))
		if err != nil {
			t.Fatalf("%v: run KUBE_BUILD_PLATFORMS=windows/amd64 make", err)
		}
		files[name] = string(program)
		files[`..\new\`+name] = string(program) + "newer"
	}
	if err := errors.Join(p.Own(p.Path(`C:\k`)), p.Own(p.Path(`C:\new`))); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(p.Path(`C:\k\`+name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParsePage: the page's commands, and a script's calls, are what they look like.
func TestParsePage(t *testing.T) {
	got := parsePage("text\n\n```powershell\na.exe one `\n    two    # say\n# all\nGet-Service docker\n```\n\n```text\nout\n```\n\n```powershell\nb.exe\n```\n")
	if len(got) != 2 || !slices.Equal(got[0].commands, []string{"a.exe one two", "Get-Service docker"}) || got[0].want != "out\n" || got[1].want != "" {
		t.Errorf("%+v", got)
	}
	calls := callsIn(t, `.\Install-Node.ps1 -Kubeconfig .\k.conf -NodeIP 192.0.2.7 -KubeletFlags '--v=2'`)
	if len(calls) != 8 || strings.Join(calls[0], " ") != `C:\k\kubelet.exe service install --kubeconfig=C:\k\kubelet.conf --root-dir=C:\var\lib\kubelet `+
		`--cluster-cidr=10.244.0.0/16 --cluster-dns=10.96.0.10 --cluster-domain=cluster.local --node-ip=192.0.2.7 --v=2` {
		t.Errorf("%d calls, the first %q", len(calls), calls)
	}
	if calls := callsIn(t, `.\Install-Node.ps1 -Upgrade`); len(calls) != 2 || strings.Join(calls[1], " ") != `C:\new\proxy.exe service upgrade` {
		t.Errorf("upgrade: %q", calls)
	}
}
