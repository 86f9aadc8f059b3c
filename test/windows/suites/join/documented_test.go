package join

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// windowsGuide is the page whose commands TestDocumented runs.
const windowsGuide = "docs/guides/windows.md"

// forTheRig are the flags that no guide has an administrator give, and why the tests need them.
var forTheRig = map[string]string{
	"eviction-hard":           "the machine's disk and memory are not the simulated host's",
	"image-gc-high-threshold": "the same: a full disk of the machine would remove the host's images",
}

// labFlags are the kubelet's in each join: those of forTheRig, and the pause image's name, as the guide says where none of the default name is.
var labFlags = []string{"--pod-infra-container-image=" + lab.PauseImage, "--eviction-hard=", "--image-gc-high-threshold=100"}

// TestDocumented makes each Server a node by the commands of the Windows guide, runs a pod with a Service, and makes it a bare server again by the guide's
// commands. No variable is set, and no flag is added but labFlags.
func TestDocumented(t *testing.T) {
	for _, build := range servers {
		onServer(t, build, func(m *member) {
			m.boot()
			m.named()
			m.documented()
		})
	}
}

// named gives the simulated Windows the host's name. Wine takes that of the machine, in the value that GetComputerNameEx reads for a DNS name.
func (m *member) named() {
	m.Helper()
	if err := m.SetRegistry(m.Context(), `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Services\Tcpip\Parameters`, "Hostname", m.host.Name); err != nil {
		m.Fatal(err)
	}
}

// documentedObjects are a Deployment on the Windows node, because `kubectl drain` refuses pods without a controller, its Service, and a pod on a Linux node.
const documentedObjects = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: NODE}
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: ` + lab.SampleImage + `, imagePullPolicy: Never, args: [serve, "8080"]}]
` + serviceAndPeer

func (m *member) documented() {
	m.Helper()
	ctx := m.Context()
	m.forgetAtEnd()
	begin := time.Now()
	said := <-m.beginJoin(nil, nil)
	if !strings.Contains(said, "Node "+m.host.Name+": Ready") {
		m.Fatalf("kubelet.exe node join printed\n%s", said)
	}
	m.did("guide: node join to Node Ready", seconds(time.Since(begin)))
	m.podCIDR = m.rangeOfNode()
	m.letIn()
	m.namespace("documented")
	m.apply(strings.ReplaceAll(documentedObjects, "LINUX", cluster.Nodes[0].Name))
	m.until(90*time.Second, "the pod Ready", func(context.Context) error { return m.podsReady(1, 0) })
	m.serves()
	m.reachesOtherNodes()
	m.did("guide: a Service, pods of other nodes", "ok")
	if _, err := cluster.Kubectl(ctx, m.guided("kubectl drain NAME", "NAME", m.host.Name)...); err != nil {
		m.Fatal(err)
	}
	begin = time.Now()
	left, err := m.Finish(m.agentAt(m.guidedProgram(), m.guided(`.\kubelet.exe node leave`)))
	want := "done; the Node object stays until: kubectl delete node " + m.host.Name
	if err != nil || !strings.Contains(left.Stdout, want) {
		m.Fatalf("kubelet.exe node leave: %v, want %q:\n%s", err, want, left)
	}
	if _, err := cluster.Kubectl(ctx, m.guided("kubectl delete node NAME", "NAME", m.host.Name)...); err != nil {
		m.Fatal(err)
	}
	m.did("guide: node leave", seconds(time.Since(begin)))
	if list, err := m.host.Engine().Containers(ctx); err != nil || len(list) > 0 {
		m.Errorf("%d containers are left, %v", len(list), err)
	}
	if _, err := os.Stat(m.Path(`C:\k`)); !errors.Is(err, fs.ErrNotExist) {
		m.Errorf("C:\\k: %v", err)
	}
	m.nothingLeft()
	m.did("guide: nothing left", "ok")
}

// letIn lets packets of other nodes reach the pods. The filter of the Linux engine beneath drops them; dockerd.exe has none.
func (m *member) letIn() {
	m.Helper()
	rule := []string{"FORWARD", "--destination", m.podCIDR, "--jump", "ACCEPT"}
	if _, err := m.host.Exec(m.Context(), append([]string{"iptables", "-w", "-I"}, rule...)...); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if _, err := m.host.Exec(context.Background(), append([]string{"iptables", "-w", "-D"}, rule...)...); err != nil {
			m.Error(err)
		}
	})
}

// guidedProgram is the program that the guide runs in its own directory.
func (m *member) guidedProgram() string { return `C:\new\kubelet.exe` }

var inlineOrOwnLine = regexp.MustCompile("(?m)^(?: {4})?([^`\n]+)$|`([^`\n]+)`")

// guided returns the words after the program's name of the command in the Windows guide that begins so. Pairs of words replace what the guide leaves to its
// reader.
func (m *member) guided(begin string, replaced ...string) []string {
	m.Helper()
	page, err := os.ReadFile(filepath.Join(cluster.Root, windowsGuide))
	if err != nil {
		m.Fatal(err)
	}
	for _, found := range inlineOrOwnLine.FindAllStringSubmatch(string(page), -1) {
		command, _, _ := strings.Cut(found[1]+found[2], " #")
		if rest, ok := strings.CutPrefix(command, begin); ok && (rest == "" || rest[0] == ' ') {
			return strings.Fields(strings.NewReplacer(append(replaced, "'", "")...).Replace(command))[1:]
		}
	}
	m.Fatalf("%s has no command %q", windowsGuide, begin)
	return nil
}

// joinByGuide returns the guide's arguments of `kubelet.exe node join`, with this cluster's address, token and hash.
func (m *member) joinByGuide() []string {
	m.Helper()
	words := m.joinWords() // join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH
	return m.guided(`.\kubelet.exe node join`, "10.0.0.1:6443", words[1], "abcdef.0123456789abcdef", words[3], "sha256:HASH", words[5])
}

var flagName = regexp.MustCompile(`^--?([a-z][a-z0-9-]*)`)

// inGuides wants each flag to stand in a guide, or in forTheRig.
func (m *member) inGuides(args []string) {
	m.Helper()
	pages, err := filepath.Glob(filepath.Join(cluster.Root, "docs/guides/*.md"))
	if err != nil {
		m.Fatal(err)
	}
	var all strings.Builder
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			m.Fatal(err)
		}
		all.Write(text)
	}
	for _, arg := range args {
		name := flagName.FindStringSubmatch(arg)
		if name == nil || forTheRig[name[1]] != "" {
			continue
		}
		if !regexp.MustCompile(`--` + name[1] + `\b`).MatchString(all.String()) {
			m.Errorf("no guide has the flag --%s, which this test gives: write it there, or give a reason in forTheRig", name[1])
		}
	}
}
