package programs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/test/apiserver"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/engine"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

var update = flag.Bool("update", false, "write what the programs print into docs/guides/windows.md, and golden states")

// page is docs/guides/windows.md.
const page = "../../../../docs/guides/windows.md"

// block is a block of commands in the page, with their documented output.
type block struct {
	commands  []string
	want      string // the documented output
	got       string // the actual output
	at, until int    // the place of want in the page; 0 means that there is none
}

var blocks = regexp.MustCompile("(?ms)^```powershell\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?")

// parsePage returns the page's commands: one per line, without comments; a line that ends with ` continues on the next.
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
var notRun = []string{"Install-WindowsFeature ", "Get-Service ", "Get-EventLog ", `.\collect-logs.ps1`}

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
	{regexp.MustCompile(`(?m)^\w+ +\d+% of the disk is free at (.*?)(: below .*\n +fix: .*)?$`), "ok     N% of the disk is free at $1"},
	{regexp.MustCompile(`(?m)^\[ *\d+\.\d s\]`), "[  N s]"},
	{regexp.MustCompile(`https://127\.0\.0\.1:\d+`), "https://10.0.0.1:6443"},
	{regexp.MustCompile(`(?m)(networks: removed network winkube of the engine)$`), "$1, network winkube of HNS"}, // on Server 2016 Docker makes it alone
	{regexp.MustCompile(`(forwarding: off again on ")[^"]*`), "${1}Ethernet"},
	{regexp.MustCompile(`(?s)(\[  N s\] Defender: [^\n]*\n).*`), "$1...\n"},                             // kubelet doctor, which has a block elsewhere
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
	for _, build := range rig.Wanted(rig.Builds...) {
		if *update && build != server2022 {
			continue
		}
		t.Run(strconv.Itoa(build), func(t *testing.T) {
			t.Parallel()
			walkPage(t, string(data), build)
		})
	}
}

func walkPage(t *testing.T, text string, build int) {
	world, p := simulated(t, build)
	w := &walk{T: t, Prefix: p, cluster: layOut(t, p, world)}
	before := world.String()
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
	w.bare()
	if after := world.String(); after != before {
		t.Errorf("node leave leaves\n%s\nthere was before\n%s", after, before)
	}
	if w.ran < 15 || w.skipped > 4 {
		t.Errorf("%d calls were made, %d commands are Windows' own: the page is not read as it should be", w.ran, w.skipped)
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// stop ends what the page leaves running, before the servers that it speaks to.
func (w *walk) stop() {
	for _, name := range []string{"kubelet.exe", "proxy.exe"} {
		program := `C:\k\` + name
		if _, err := os.Stat(w.Path(program)); err == nil { // node leave removes it
			w.run([]string{program, "service", "stop"})
		}
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
	text = strings.ReplaceAll(text, "host: Windows Server 2022 Datacenter,", "host: "+name+",")
	text = strings.ReplaceAll(text, "the default of build 20348", fmt.Sprintf("the default of build %d", w.Build))
	here, api := engine.Version(server2022)
	docker, dockerAPI := engine.Version(w.Build)
	text = strings.NewReplacer("Docker "+here+" answers, API "+api, "Docker "+docker+" answers, API "+dockerAPI, "Docker "+here, "Docker "+docker).Replace(text)
	text = thisIs.ReplaceAllString(text, fmt.Sprintf("this is %s, 10.0.%d.%d,", name, w.Build, number))
	if w.Build == 17763 { // the kubelet makes the network and its endpoints without Docker
		text = strings.ReplaceAll(text, "network winkube of the engine, ", "")
	}
	if w.Build < 16299 { // 1709, from which on containers share a network
		text = regexp.MustCompile("(?m) '--pod-infra-container-image=pause:20348'|^ok     the pause image .*\n").ReplaceAllString(text, "")
	}
	return strings.ReplaceAll(text, "pause:20348", fmt.Sprintf("pause:%d", w.Build))
}

var thisIs = regexp.MustCompile(`this is Windows Server 2022 Datacenter, 10\.0\.20348\.\d+,`)

// walk goes through the page's commands.
type walk struct {
	*testing.T
	*rig.Prefix
	cluster      *apiserver.Joinable
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
		words[0] = strings.Replace(words[0], `.\`, `C:\new\`, 1)
		return [][]string{words}
	}
	name, isScript := strings.CutPrefix(words[0], `.\`)
	source, err := os.ReadFile(filepath.Join("../../../../build/windows", name))
	if !isScript || err != nil {
		t.Fatalf("%q is neither a call of our programs nor known as Windows' own: %v", line, err)
	}
	given := map[string][]string{}
	switch {
	case strings.Contains(line, "-Upgrade") || strings.Contains(line, "-Rollback"):
		given["Programs"] = []string{`C:\newer`}
	case name == "Install-Node.ps1":
		given["Programs"] = []string{`C:\new`}
	}
	for i := 1; i < len(words); i++ {
		switch name, isName := strings.CutPrefix(words[i], "-"); {
		case !isName: // the first parameter by its place
			given["Server"] = []string{words[i]}
		case i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") || strings.HasSuffix(name, "Flags"):
			i++
			given[name] = []string{words[i]}
		default:
			given[name] = []string{"true"} // a switch
		}
	}
	return callsOf(t, string(source), given)
}

// run runs one of our programs.
func (w *walk) run(call []string) string {
	w.Helper()
	exe, args := call[0], call[1:]
	switch {
	case len(args) > 2 && args[0] == "service" && args[1] == "install":
		args = slices.Concat(args, ownFlags[exe[strings.LastIndex(exe, `\`)+1:]])
	case args[0] == "node" && args[1] == "join":
		args = w.toCluster(args)
	}
	said, err := w.Finish(w.Command(w.Context(), exe, args...))
	if err != nil && args[0] != "doctor" && !strings.Contains(said.Stderr, "faults found: ") { // it finds that Wine has no containers
		w.Errorf("%q: %v: %s", call, err, said)
	}
	return said.Stdout + regexp.MustCompile(`(?m)^kubelet: faults found: .*\r?\n`).ReplaceAllString(said.Stderr, "")
}

// toCluster gives a `node join` of the page the address and hash of the cluster that there is, and what keeps the programs from each other's ports.
func (w *walk) toCluster(args []string) []string {
	var out []string
	for _, arg := range args {
		if arg == "--" {
			break
		}
		out = append(out, strings.ReplaceAll(strings.ReplaceAll(arg, "sha256:HASH", w.cluster.Hash()), "10.0.0.1:6443", w.cluster.Address()))
	}
	own := func(program string) []string {
		return slices.DeleteFunc(slices.Clone(ownFlags[program]), func(f string) bool {
			return strings.HasPrefix(f, "--hostname-override=") || strings.HasPrefix(f, "--bind-address=")
		})
	}
	return slices.Concat(out, []string{"--node-name=win1", "--timeout=1m", "--", "--pod-cidr=10.244.1.0/24"}, own("kubelet.exe"), []string{"--"}, own("proxy.exe"))
}

// bare: after the page's last command the host has neither services nor files of ours but logs and the kubelet's data.
func (w *walk) bare() {
	w.Helper()
	for _, name := range []string{"kubelet", "kube-proxy"} {
		if _, err := w.Registry(w.Context(), `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Services\`+name, "ImagePath"); err == nil {
			w.Errorf("the service %s is left", name)
		}
	}
	for _, dir := range []string{`C:\k`, `C:\var\lib\kubelet\pki`} {
		if entries, err := os.ReadDir(w.Path(dir)); err == nil {
			w.Errorf("%s is left, with %v", dir, entries)
		}
	}
}

// layOut gives the prefix what the page takes for given: Docker, a cluster, and programs in C:\new, newer ones in C:\newer.
func layOut(t *testing.T, p *rig.Prefix, w *sim.World) *apiserver.Joinable {
	t.Helper()
	stop, err := p.Relay(t.Context(), rig.DockerPipe, engineOn(t, p, w))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	server, err := apiserver.New(apiserver.JSON)
	if err != nil {
		t.Fatal(err)
	}
	cluster := apiserver.NewJoinable(t, server)
	if err := cluster.AddToken("abcdef.0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	dns := served("kube-dns", "10.96.0.10", 53)[0].(*v1.Service)
	dns.Namespace = "kube-system"
	if err := server.Set(dns, served("kubernetes", "10.96.0.1", 443)[0]); err != nil {
		t.Fatal(err)
	}
	for dir, more := range map[string]string{`C:\new`: "", `C:\newer`: "newer"} {
		if err := p.Own(p.Path(dir)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"kubelet.exe", "proxy.exe"} {
			content, err := os.ReadFile(program(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.Path(dir+`\`+name), append(content, more...), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return cluster
}

// engineOn is Docker of that Windows with its networks in the World's HNS, and a fake of Linux beneath, which has the pause image. It returns its address.
func engineOn(t *testing.T, p *rig.Prefix, w *sim.World) string {
	t.Helper()
	fake := dockertest.New(dockertest.Options{})
	fake.AddImage(dockertest.Image{Names: []string{fmt.Sprintf("pause:%d", p.Build)}, Entrypoint: []string{"pause.exe"}, OS: "windows", OSVersion: fmt.Sprintf("10.0.%d.1", p.Build)})
	linux := serveEngine(t, fake, nil)
	e, err := engine.New(engine.Options{Build: p.Build, Drive: p.Path(`C:\`), HNS: func(method, path, request string) (string, error) {
		result, value, _ := w.HNS.Call("HNSCall", []string{method, path, request})
		if result != 0 {
			return "", fmt.Errorf("%#x", uint32(result))
		}
		return value, nil
	}, Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", linux) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.Watch(ctx, func() { close(ready) }); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	<-ready
	server := httptest.NewServer(e)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.Listener.Addr().String()
}

// TestParsePage: the page's commands, and a script's calls, are what they look like.
func TestParsePage(t *testing.T) {
	got := parsePage("text\n\n```powershell\na.exe one `\n    two    # say\n# all\nGet-Service docker\n```\n\n```text\nout\n```\n\n```powershell\nb.exe\n```\n")
	if len(got) != 2 || !slices.Equal(got[0].commands, []string{"a.exe one two", "Get-Service docker"}) || got[0].want != "out\n" || got[1].want != "" {
		t.Errorf("%+v", got)
	}
	for line, want := range map[string]string{
		`.\Install-Node.ps1 10.0.0.1:6443 -Token abcdef.0123456789abcdef -CACertHash sha256:ab -JoinFlags '--node-ip=192.0.2.7' -KubeletFlags '--v=2' -ProxyFlags '--v=3'`: `C:\new\kubelet.exe node join --node-ip=192.0.2.7 10.0.0.1:6443 ` +
			`--token=abcdef.0123456789abcdef --discovery-token-ca-cert-hash=sha256:ab -- --v=2 -- --v=3`,
		`.\Install-Node.ps1 -Kubeconfig C:\k\kubelet.conf -ProxyKubeconfig C:\k\proxy.conf`: `C:\new\kubelet.exe node join --kubeconfig=C:\k\kubelet.conf --proxy-kubeconfig=C:\k\proxy.conf -- --`,
		`.\Install-Node.ps1 -Upgrade`:            `C:\newer\kubelet.exe service upgrade; C:\newer\proxy.exe service upgrade`,
		`.\Install-Node.ps1 -Rollback`:           `C:\newer\kubelet.exe service rollback; C:\newer\proxy.exe service rollback`,
		`.\Remove-Node.ps1`:                      `C:\k\kubelet.exe node leave --target=C:\k`,
		`.\Remove-Node.ps1 -RemoveData`:          `C:\k\kubelet.exe node leave --target=C:\k --remove-data`,
		`.\kubelet.exe node leave --remove-data`: `C:\new\kubelet.exe node leave --remove-data`,
	} {
		var calls []string
		for _, call := range callsIn(t, line) {
			calls = append(calls, strings.Join(call, " "))
		}
		if got := strings.Join(calls, "; "); got != want {
			t.Errorf("%s\ncalls %s\nwant  %s", line, got, want)
		}
	}
}
