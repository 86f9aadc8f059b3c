package join

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/winkube/winkube/test/windows/rig"
)

// services are our programs as the service manager knows them.
var services = []struct{ name, exe string }{{"kubelet", "kubelet.exe"}, {"kube-proxy", "proxy.exe"}}

// asServices ends both programs in order and lets the service manager run them. What Wine's lacks is not seen here: recovery actions, a
// delayed start (docs/windows-quirks.md).
func (m *member) asServices() {
	m.kubelet.stop()
	m.proxy.stop()
	m.did("ended in order on Ctrl-C", fmt.Sprintf("%d, %d", m.kubelet.cmd.ProcessState.ExitCode(), m.proxy.cmd.ProcessState.ExitCode()))
	ctx := m.Context()
	begin := time.Now()
	for i, flags := range [][]string{m.kubeletFlags(), m.proxyFlags()} {
		one := services[i]
		argv := append([]string{rig.WindowsPath(filepath.Join(bin, one.exe)), "--windows-service", `--log-file=C:\` + one.name + ".log"}, flags...)
		if slices.ContainsFunc(argv, func(arg string) bool { return strings.ContainsAny(arg, ` "`) }) {
			m.Fatalf("%q: want arguments that need no quotes", argv)
		}
		for _, args := range [][]string{{"create", one.name, "binPath=", strings.Join(argv, " "), "start=", "demand"}, {"start", one.name}} {
			if _, err := m.Prefix.Run(ctx, "sc.exe", args...); err != nil {
				m.Fatal(err)
			}
		}
	}
	for _, one := range services {
		m.service(one.name, "RUNNING")
	}
	m.until(time.Minute, "Node Ready by a service", func(ctx context.Context) error { return m.ready(ctx, begin) })
	m.inPod("my-secret-pod env")
	m.services()
	m.did("as Windows services: Node Ready", seconds(time.Since(begin)))
}

// service waits until the service manager says that a service is in a state.
func (m *member) service(name, state string) {
	m.Helper()
	m.until(30*time.Second, "service "+name, func(ctx context.Context) error {
		out, err := m.Prefix.Run(ctx, "sc.exe", "query", name)
		if err == nil && !strings.Contains(out, state) {
			err = fmt.Errorf("want %s: %s", state, out)
		}
		return err
	})
}

// stopServices ends the services as an administrator does.
func (m *member) stopServices() {
	for _, one := range services {
		if _, err := m.Prefix.Run(m.Context(), "sc.exe", "stop", one.name); err != nil {
			m.Error(err)
		}
	}
	for _, one := range services {
		m.service(one.name, "STOPPED")
	}
	m.did("services stopped", "ok")
}
