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

// asServices stops both programs normally and lets them install themselves as services. It does not test what Wine's service
// manager lacks: recovery actions, a delayed start, texts in the event log (docs/design/windows-quirks.md).
func (m *member) asServices() {
	m.kubelet.Stop()
	m.proxy.Stop()
	m.did("ended in order on Ctrl-C", fmt.Sprintf("%d, %d", m.kubelet.ExitCode(), m.proxy.ExitCode()))
	m.reserves()
	begin := time.Now()
	if err := m.Own(m.Path(`C:\k`)); err != nil {
		m.Fatal(err)
	}
	m.awaitsDocker(m.startServices)
	m.until(3*time.Minute, "Node Ready by a service", func(context.Context) error { return m.ready(begin) })
	m.inPod("my-secret-pod env")
	m.services()
	m.did("service install, start: Node Ready", seconds(time.Since(begin)))
	if text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`)); err != nil || !strings.Contains(string(text), "Starting kubelet") {
		m.Errorf("the service's log: %v, %.200s", err, text)
	}
}

// startServices installs and starts both. It runs each verb twice: the second run changes nothing.
func (m *member) startServices() {
	m.Helper()
	for i, flags := range [][]string{m.kubeletFlags(), m.proxyFlags()} {
		m.copyProgram(services[i].exe)
		one := services[i]
		m.does(one.exe, one.name+": installed; it starts with Windows", append([]string{"install"}, flags...)...)
		m.does(one.exe, one.name+": is already installed with these settings", "install")
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

// copyProgram copies a program to drive C, where an upgrade may replace it.
func (m *member) copyProgram(exe string) {
	m.Helper()
	program, err := os.ReadFile(filepath.Join(bin, exe))
	if err == nil {
		err = m.WriteProgram(m.Path(`C:\k\`+exe), program)
	}
	if err != nil {
		m.Fatal(err)
	}
}

// upgrades replaces the service's kubelet.exe by another version, then restores the former one. No pod restarts.
func (m *member) upgrades() {
	m.Helper()
	before := m.containers()
	begin := time.Now()
	m.doesWith(filepath.Join(bin, "newer", "kubelet.exe"), "version "+newer+" now runs instead of the previous one", "upgrade")
	m.until(3*time.Minute, "Node Ready after an upgrade", func(context.Context) error { return m.ready(begin) })
	m.served(time.Minute, "a log of version "+newer, func(context.Context) error {
		text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`))
		if err == nil && !strings.Contains(string(text), fmt.Sprintf("version=%q", newer)) {
			err = errors.New("no kubelet of that version was started")
		}
		return err
	})
	m.inPod("my-secret-pod env")
	m.did("service upgrade: Node Ready", seconds(time.Since(begin)))
	begin = time.Now()
	m.does("kubelet.exe", "the previous version runs again", "rollback")
	m.until(3*time.Minute, "Node Ready after a roll-back", func(context.Context) error { return m.ready(begin) })
	m.did("service rollback: Node Ready", seconds(time.Since(begin)))
	if after := m.containers(); !slices.Equal(before, after) {
		m.Errorf("containers before: %v\nafter: %v", before, after)
	}
	m.did("containers kept over both", strconv.Itoa(len(before)))
}

// does runs `EXE service VERB` and requires want in its output.
func (m *member) does(exe, want string, args ...string) string {
	m.Helper()
	return m.doesWith(`C:\k\`+exe, want, args...)
}

// doesWith is does for the program at a path.
func (m *member) doesWith(exe, want string, args ...string) string {
	m.Helper()
	begin := time.Now()
	said, err := m.Finish(m.agentAt(exe, append([]string{"service"}, args...)))
	m.Logf("%5.1f s  %s service %s: %s", time.Since(m.begin).Seconds(), exe, args[0], seconds(time.Since(begin)))
	if err != nil || !strings.Contains(said.Stdout, want) {
		m.Fatalf("%s service %s: %v, want %q:\n%s", exe, args[0], err, want, said)
	}
	return said.Stdout
}

// stopServices stops and removes the services, like an administrator.
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
