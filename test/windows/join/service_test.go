package join

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// services are our programs as the service manager knows them.
var services = []struct{ name, exe string }{{"kubelet", "kubelet.exe"}, {"kube-proxy", "proxy.exe"}}

// asServices ends both programs in order and has them make themselves services. What Wine's service manager lacks is not seen here:
// recovery actions, a delayed start, texts in the event log (docs/windows-quirks.md).
func (m *member) asServices() {
	m.kubelet.stop()
	m.proxy.stop()
	m.did("ended in order on Ctrl-C", fmt.Sprintf("%d, %d", m.kubelet.cmd.ProcessState.ExitCode(), m.proxy.cmd.ProcessState.ExitCode()))
	begin := time.Now()
	for i, flags := range [][]string{m.kubeletFlags(), m.proxyFlags()} {
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
	m.until(time.Minute, "Node Ready by a service", func(ctx context.Context) error { return m.ready(ctx, begin) })
	m.inPod("my-secret-pod env")
	m.services()
	m.did("service install, start: Node Ready", seconds(time.Since(begin)))
	if text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`)); err != nil || !strings.Contains(string(text), "Starting kubelet") {
		m.Errorf("the service's log: %v, %.200s", err, text)
	}
}

// does runs `EXE service VERB` and wants a text in what it prints.
func (m *member) does(exe, want string, args ...string) string {
	m.Helper()
	out, err := m.agent(exe, append([]string{"service"}, args...)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), want) {
		m.Fatalf("%s service %s: %v, want %q:\n%s", exe, args[0], err, want, out)
	}
	return string(out)
}

// stopServices ends the services and removes them, as an administrator does.
func (m *member) stopServices() {
	for _, one := range services {
		m.does(one.exe, one.name+": stopped", "stop")
		m.does(one.exe, one.name+": stopped already", "stop")
		m.does(one.exe, one.name+": uninstalled", "uninstall")
		m.does(one.exe, one.name+": is not installed", "uninstall")
		out, err := m.agent(one.exe, []string{"service", "start"}).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the service is not installed") {
			m.Errorf("%s service start of none: %v:\n%s", one.exe, err, out)
		}
	}
	m.did("service stop, uninstall", "ok")
}
