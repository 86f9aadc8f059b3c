package join

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// services are our programs as the service manager knows them.
var services = []struct{ name, exe string }{{"kubelet", "kubelet.exe"}, {"kube-proxy", "proxy.exe"}}

// asServices ends both programs in order and has them make themselves services. What Wine's service manager lacks is not seen here:
// recovery actions, a delayed start, texts in the event log (docs/design/windows-quirks.md).
func (m *member) asServices() {
	m.kubelet.stop()
	m.proxy.stop()
	m.did("ended in order on Ctrl-C", fmt.Sprintf("%d, %d", m.kubelet.cmd.ProcessState.ExitCode(), m.proxy.cmd.ProcessState.ExitCode()))
	m.reserves()
	begin := time.Now()
	if err := m.Own(m.Path(`C:\k`)); err != nil {
		m.Fatal(err)
	}
	m.awaitsDocker(m.startServices)
	m.until(time.Minute, "Node Ready by a service", func(context.Context) error { return m.ready(begin) })
	m.inPod("my-secret-pod env")
	m.services()
	m.did("service install, start: Node Ready", seconds(time.Since(begin)))
	if text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`)); err != nil || !strings.Contains(string(text), "Starting kubelet") {
		m.Errorf("the service's log: %v, %.200s", err, text)
	}
}

// startServices installs both and starts them, each verb twice: said again it changes nothing.
func (m *member) startServices() {
	m.Helper()
	for i, flags := range [][]string{m.kubeletFlags(), m.proxyFlags()} {
		m.copyProgram(services[i].exe)
		one := services[i]
		m.does(one.exe, one.name+": installed; it starts with Windows", append([]string{"install"}, flags...)...)
		m.does(one.exe, one.name+": is installed as wanted", "install")
		m.does(one.exe, one.name+": runs", "start")
		m.does(one.exe, one.name+": runs already", "start")
		status := m.does(one.exe, "running", "status")
		for _, want := range append([]string{"--windows-service", `--log-file=C:\var\log\` + one.name + `\` + one.name + ".log"}, flags...) {
			if !strings.Contains(status, want) {
				m.Errorf("the status lacks %q:\n%s", want, status)
			}
		}
		m.Logf("%s service status:\n%s", one.exe, status)
	}
}

// copyProgram lays a program out on drive C, where an upgrade may change it.
func (m *member) copyProgram(exe string) {
	m.Helper()
	program, err := os.ReadFile(filepath.Join(bin, exe))
	if err == nil {
		err = os.WriteFile(m.Path(`C:\k\`+exe), program, 0o755)
	}
	if err != nil {
		m.Fatal(err)
	}
}

// upgrades has a kubelet.exe of another version take the place of the service's, and the one before come back. No pod is restarted.
func (m *member) upgrades() {
	m.Helper()
	before := m.containers()
	begin := time.Now()
	m.doesWith(filepath.Join(bin, "newer", "kubelet.exe"), "version "+newer+" now runs instead of the previous one", "upgrade")
	m.until(time.Minute, "Node Ready after an upgrade", func(context.Context) error { return m.ready(begin) })
	m.served(30*time.Second, "a log of version "+newer, func(context.Context) error {
		text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`))
		if err == nil && !strings.Contains(string(text), fmt.Sprintf("version=%q", newer)) {
			err = errors.New("no kubelet of that version was started")
		}
		return err
	})
	m.inPod("my-secret-pod env")
	m.did("service upgrade: Node Ready", seconds(time.Since(begin)))
	begin = time.Now()
	m.does("kubelet.exe", "the version before runs again", "rollback")
	m.until(time.Minute, "Node Ready after a roll-back", func(context.Context) error { return m.ready(begin) })
	m.did("service rollback: Node Ready", seconds(time.Since(begin)))
	if after := m.containers(); !slices.Equal(before, after) {
		m.Errorf("containers before: %v\nafter: %v", before, after)
	}
	m.did("containers kept over both", strconv.Itoa(len(before)))
}

// does runs `EXE service VERB` and wants a text in what it prints.
func (m *member) does(exe, want string, args ...string) string {
	m.Helper()
	return m.doesWith(`C:\k\`+exe, want, args...)
}

// doesWith is does with the program at a path.
func (m *member) doesWith(exe, want string, args ...string) string {
	m.Helper()
	said, err := m.Finish(m.agentAt(exe, append([]string{"service"}, args...)))
	if err != nil || !strings.Contains(said.Stdout, want) {
		m.Fatalf("%s service %s: %v, want %q:\n%s", exe, args[0], err, want, said)
	}
	return said.Stdout
}

// stopServices ends the services and removes them, as an administrator does.
func (m *member) stopServices() {
	for _, one := range services {
		m.does(one.exe, one.name+": stopped", "stop")
		m.does(one.exe, one.name+": stopped already", "stop")
		m.does(one.exe, one.name+": uninstalled", "uninstall")
		m.does(one.exe, one.name+": is not installed", "uninstall")
		said, err := m.Finish(m.agentAt(`C:\k\`+one.exe, []string{"service", "start"}))
		if err == nil || !strings.Contains(said.Stderr, "the service is not installed") {
			m.Errorf("%s service start of none: %v:\n%s", one.exe, err, said)
		}
	}
	m.did("service stop, uninstall", "ok")
}
