package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// upgrading is a service whose program is a file of this machine, with the new program beside it.
type upgrading struct {
	*serviceCommand
	*scm
	dir  string
	said bytes.Buffer
}

// newUpgrading writes files with these contents: "kubelet.exe" is the service's program, "new.exe" the running one.
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
	u.serviceCommand = &serviceCommand{manager: u.scm, out: &u.said, full: func(string) (string, error) { return "", nil }, program: Program{Name: "kubelet", Check: func(args []string) (time.Duration, error) {
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

// TestUpgrade upgrades, rolls back and upgrades again, and starts at every point at which an exchange can have been interrupted.
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
		{name: "back", before: "kubelet.exe=2 kubelet.exe.old=1", verb: "rollback", want: "kubelet.exe=1 kubelet.exe.old=2", says: "the previous version runs again"},
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

// TestUpgradeRefused: nothing changes if the new version cannot take over.
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

// TestUpgradeOlder: an older program does not take a newer one's place unless it is told to, and one whose version cannot be read does not stand in
// the way.
func TestUpgradeOlder(t *testing.T) {
	const replaced, kept = "kubelet.exe=2 kubelet.exe.old=1", "kubelet.exe=1"
	for name, c := range map[string]struct {
		prints  string
		fails   error
		allowed bool
		want    string
	}{
		"newer":          {prints: "Kubernetes v1.36.3\nwinkube 99.0.0\ncommit x\n", want: kept},
		"newer, of Wine": {prints: "Kubernetes v1.36.3\r\nwinkube 99.0.0\r\ncommit x\r\n", want: kept},
		"newer, allowed": {prints: "winkube 99.0.0\n", allowed: true, want: replaced},
		"older":          {prints: "winkube 0.0.1\n", want: replaced},
		"the same":       {prints: "winkube " + Version + "\n", want: replaced},
		"no version":     {prints: "Kubernetes v1.36.3\n", want: replaced},
		"does not run":   {prints: "winkube 99.0.0\n", fails: errors.New("exit status 3"), want: replaced},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(t, map[string]string{"new.exe": "2", "kubelet.exe": "1"})
			u.older = c.allowed
			u.full = func(program string) (string, error) {
				if program != filepath.Join(u.dir, "kubelet.exe") {
					t.Errorf("the version of %s is read", program)
				}
				return c.prints, c.fails
			}
			err := u.do("upgrade", nil)
			if refused := err != nil && strings.Contains(err.Error(), "has version 99.0.0, which is newer than "+Version) && !strings.Contains(err.Error(), "\n"); refused != (c.want == kept) {
				t.Errorf("%v", err)
			}
			if got := u.files(t); got != c.want || u.state.State != stateRunning {
				t.Errorf("there is %s, want %s; the service is %s", got, c.want, u.state.State)
			}
		})
	}
}

// dying is a service manager whose service does not start while its program is the new one.
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

// several are service managers, by service name.
type several map[string]*scm

func (m several) Elevated() bool              { return true }
func (m several) Executable() (string, error) { return m["kubelet"].Executable() }
func (m several) Read(name string) (*Registration, *Running, error) {
	return m[name].Read(name)
}
func (m several) Write(name string, want Registration) ([]string, error) {
	return m[name].Write(name, want)
}
func (m several) Remove(name string) error  { return m[name].Remove(name) }
func (m several) Start(name string) error   { return m[name].Start(name) }
func (m several) Stop(name string) error    { return m[name].Stop(name) }
func (m several) Trusted(path string) error { return m["kubelet"].Trusted(path) }

// TestUpgradeBeside: a running service with the same program is restarted, so that the next upgrade can replace the file. One with another program,
// or a stopped one, is left alone.
func TestUpgradeBeside(t *testing.T) {
	for _, test := range []struct {
		name    string
		cri     scm
		path    string // of its program; "": the kubelet's, in upper case
		broken  error
		starts  bool // again
		refused string
	}{
		{name: "same program", cri: scm{state: Running{State: stateRunning, PID: 8}}, starts: true},
		{name: "stopped", cri: scm{state: Running{State: stateStopped}}},
		{name: "another program", cri: scm{state: Running{State: stateRunning, PID: 8}}, path: "other.exe"},
		{name: "does not start", cri: scm{state: Running{State: stateRunning, PID: 8}, broken: errors.New("no pipe")}, refused: "no pipe"},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := newUpgrading(t, map[string]string{"new.exe": "2", "kubelet.exe": "1"})
			test.cri.have = &Registration{Argv: []string{cmp.Or(test.path, strings.ToUpper(u.scm.have.Argv[0])), "cri", "--windows-service"}}
			before := test.cri.state
			u.manager, u.program.Beside = several{"kubelet": u.scm, "kubelet-cri": &test.cri}, []string{"kubelet-cri"}
			err := u.do("upgrade", nil)
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("%v, want %q", err, test.refused)
			}
			if got := u.files(t); got != "kubelet.exe=2 kubelet.exe.old=1" || u.state.State != stateRunning {
				t.Errorf("there is %s, the service is %s", got, u.state.State)
			}
			if after := test.cri.state; test.starts && (after.State != stateRunning || after.PID == before.PID) || !test.starts && test.broken == nil && test.refused == "" && after != before {
				t.Errorf("the service beside it was %+v and is %+v", before, after)
			}
		})
	}
}

// TestUpgradeGivesWay: a new program that does not start is rolled back, and an incompatible API server version is reported first.
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

// TestPlantedPrograms: files that another account has put beside the service's program are not run: kubelet.exe.new is recreated instead of
// overwritten, and there is no rollback to its kubelet.exe.old.
func TestPlantedPrograms(t *testing.T) {
	u := newUpgrading(t, map[string]string{"new.exe": "2", "kubelet.exe": "1", "kubelet.exe.new": "planted"})
	planted, err := os.OpenFile(filepath.Join(u.dir, "kubelet.exe.new"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer planted.Close()
	err = u.do("upgrade", nil)
	if runtime.GOOS == "windows" { // an open file cannot be replaced there
		if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("with the file open: %v", err)
		}
		planted.Close()
		err = u.do("upgrade", nil)
	} else if _, failed := planted.WriteAt([]byte("evil"), 0); failed != nil { // its handle stays open
		t.Fatal(failed)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := u.files(t), "kubelet.exe=2 kubelet.exe.old=1"; got != want {
		t.Errorf("there is %s, want %s", got, want)
	}

	u = newUpgrading(t, map[string]string{"kubelet.exe": "2", "kubelet.exe.old": "planted"})
	u.alien = filepath.Join(u.dir, "kubelet.exe.old")
	err = u.do("rollback", nil)
	if err == nil || !strings.Contains(err.Error(), "kubelet.exe.old belongs to account S-1-5-21-1-2-3-1001") || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("%v", err)
	}
	if got, want := u.files(t), "kubelet.exe=2 kubelet.exe.old=planted"; got != want || u.state.State != stateRunning {
		t.Errorf("there is %s and the service is %s, want %s", got, u.state.State, want)
	}
}
