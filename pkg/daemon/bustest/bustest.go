// Package bustest runs a real D-Bus daemon for a test, which then exports the services of a host's system bus on it.
//
//	test --> Start --> dbus-daemon <-- the code under test
package bustest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// Start returns the address of a bus that runs until the test ends. It skips the test if dbus-daemon is not installed.
func Start(t *testing.T) (address string) {
	t.Helper()
	program := "/usr/bin/dbus-daemon"
	if _, err := os.Stat(program); err != nil {
		t.Skipf("needs a message bus: %v", err)
	}
	dir, err := os.MkdirTemp("", "bus") // a short name: socket paths have a length limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "config")
	if err := os.WriteFile(file, []byte(strings.Replace(config, "SOCKET", socket, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	process, err := os.StartProcess(program, []string{program, "--config-file=" + file, "--nofork", "--nopidfile", "--print-address"},
		&os.ProcAttr{Files: []*os.File{nil, write, os.Stderr}})
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Kill()
		_, _ = process.Wait()
	})
	_ = read.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := read.Read(make([]byte, 100)); err != nil { // it prints its address when it listens
		t.Fatal(err)
	}
	return "unix:path=" + socket
}
