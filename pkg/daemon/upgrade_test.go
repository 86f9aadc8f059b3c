package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// upgrading is a service whose program is a file of this machine, and the new program beside.
type upgrading struct {
	*serviceCommand
	*scm
	dir  string
	said bytes.Buffer
}

// newUpgrading lays out files by their contents: "kubelet.exe" is the service's program, "new.exe" the one that is run.
func newUpgrading(t *testing.T, files map[string]string) *upgrading {
	t.Helper()
	u := &upgrading{dir: t.TempDir()}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	u.scm = &scm{exe: filepath.Join(u.dir, "new.exe"), have: &Registration{Argv: []string{filepath.Join(u.dir, "kubelet.exe"), "--windows-service", "--v=2"}},
		state: Running{State: stateRunning, PID: 7}}
	u.serviceCommand = &serviceCommand{manager: u.scm, out: &u.said, program: Program{Name: "kubelet", Check: func(args []string) (time.Duration, error) {
		if !slices.Contains(args, "--v=2") {
			return 0, fmt.Errorf("unknown flag %s", args[len(args)-1])
		}
		return 0, nil
	}}}
	return u
}

// files are the programs beside the service's own, NAME=CONTENT.
func (u *upgrading) files(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(u.dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if text, err := os.ReadFile(filepath.Join(u.dir, e.Name())); err == nil && e.Name() != "new.exe" {
			all = append(all, e.Name()+"="+string(text))
		}
	}
	return strings.Join(all, " ")
}

// TestUpgrade goes forward, back and forward again, and begins at every point at which an exchange can have been cut short.
func TestUpgrade(t *testing.T) {
	for _, test := range []struct {
		name    string
		before  string // files
		state   string // of the service
		verb    string
		want    string
		says    string
		refused string
	}{
		{name: "upgrade", before: "kubelet.exe=1", verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1", says: "now runs instead of the previous one"},
		{name: "a second upgrade forgets the first", before: "kubelet.exe=1 kubelet.exe.old=0", verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1"},
		{name: "nothing new", before: "kubelet.exe=2 kubelet.exe.old=1", verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1", says: "already"},
		{name: "cut short while it was laid down", before: "kubelet.exe=1 kubelet.exe.new=half", verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1"},
		{name: "cut short after the service was stopped", before: "kubelet.exe=1 kubelet.exe.new=2", state: stateStopped, verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1"},
		{name: "cut short between two names", before: "kubelet.exe.old=1 kubelet.exe.new=2", state: stateStopped, verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1"},
		{name: "cut short before the start", before: "kubelet.exe=2 kubelet.exe.old=1", state: stateStopped, verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.old=1", says: "runs"},
		{name: "upgrade after a roll-back was cut short", before: "kubelet.exe.back=1 kubelet.exe.old=0", state: stateStopped, verb: "upgrade", want: "kubelet.exe=2 kubelet.exe.back=1 kubelet.exe.old=0"},
		{name: "back", before: "kubelet.exe=2 kubelet.exe.old=1", verb: "rollback", want: "kubelet.exe=1 kubelet.exe.old=2", says: "the version before runs again"},
		{name: "back, cut short at first", before: "kubelet.exe.back=2 kubelet.exe.old=1", state: stateStopped, verb: "rollback", want: "kubelet.exe=1 kubelet.exe.old=2"},
		{name: "back, cut short later", before: "kubelet.exe=1 kubelet.exe.back=2", state: stateStopped, verb: "rollback", want: "kubelet.exe=1 kubelet.exe.old=2"},
		{name: "back, from an upgrade cut short", before: "kubelet.exe.old=1 kubelet.exe.new=2", state: stateStopped, verb: "rollback", want: "kubelet.exe=1 kubelet.exe.new=2"},
		{name: "nowhere to go back", before: "kubelet.exe=1", verb: "rollback", want: "kubelet.exe=1", refused: "was not upgraded"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := map[string]string{"new.exe": "2"}
			for _, file := range strings.Fields(test.before) {
				name, text, _ := strings.Cut(file, "=")
				files[name] = text
			}
			u := newUpgrading(t, files)
			if test.state != "" {
				u.state = Running{State: test.state}
			}
			err := u.do(test.verb, nil)
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("%v, want %q", err, test.refused)
			}
			if got := u.files(t); got != test.want {
				t.Errorf("there is %s, want %s", got, test.want)
			}
			if u.state.State != stateRunning || !strings.Contains(u.said.String(), test.says) {
				t.Errorf("the service is %s, told was %q", u.state.State, u.said.String())
			}
		})
	}
}

// TestUpgradeRefused: nothing is touched where the new version cannot take over.
func TestUpgradeRefused(t *testing.T) {
	u := newUpgrading(t, map[string]string{"new.exe": "2", "kubelet.exe": "1"})
	u.have.Argv[2] = "--gone=x"
	if err := u.do("upgrade", nil); err == nil || !strings.Contains(err.Error(), "does not accept the service's flags; nothing was changed: unknown flag --gone=x") {
		t.Errorf("%v", err)
	}
	u.have = nil
	for _, verb := range []string{"upgrade", "rollback"} {
		if err := u.do(verb, nil); !errors.Is(err, errNotInstalled) {
			t.Errorf("%s of nothing: %v", verb, err)
		}
	}
	if got := u.files(t); got != "kubelet.exe=1" || u.state.PID != 7 {
		t.Errorf("there is %s, the service is %+v", got, u.state)
	}
}

// dying is a service manager whose service does not start as long as its program is the new one.
type dying struct {
	*scm
	program string
}

func (m dying) Start(name string) error {
	if text, err := os.ReadFile(m.program); err != nil || string(text) == "2" {
		return errors.Join(errors.New("the service did not respond"), err)
	}
	return m.scm.Start(name)
}

// TestUpgradeGivesWay: a new program that does not start is taken back, and what is wrong with the API server's version is told before.
func TestUpgradeGivesWay(t *testing.T) {
	u := newUpgrading(t, map[string]string{"new.exe": "2", "kubelet.exe": "1"})
	u.manager = dying{u.scm, filepath.Join(u.dir, "kubelet.exe")}
	u.program.Skew = func(args []string) error { return fmt.Errorf("too new\nwith %d flags", len(args)) }
	err := u.do("upgrade", nil)
	if err == nil || !strings.Contains(err.Error(), "restoring the previous program: the service did not respond") {
		t.Errorf("%v", err)
	}
	if got := u.files(t); got != "kubelet.exe=1 kubelet.exe.old=2" || u.state.State != stateRunning {
		t.Errorf("there is %s, the service is %s", got, u.state.State)
	}
	if got := u.said.String(); got != "kubelet: note: too new; with 2 flags\n" {
		t.Errorf("told was %q", got)
	}
}
