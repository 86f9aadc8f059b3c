// Package launch starts programs under Wine that run until they are stopped.
package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// starts is how often a program is started that Wine loses before it runs: it ends, or hangs, without a word. It happens once in some hundred
	// starts on a busy machine (rig.Prefix.Run), and was seen after a reboot of the simulated host. All programs print something when they start.
	starts = 3
	// silence is how long a program may take to its first word.
	silence = time.Minute
)

// Program is a program that runs, or has ended, with what it printed.
type Program struct {
	cmd   *exec.Cmd
	Begin time.Time // of its start
	log   *printed
	ended chan struct{}
}

// printed is what a program has printed so far. It may be read while the program runs.
type printed struct {
	mu    sync.Mutex
	text  bytes.Buffer
	first chan struct{} // closed with the first word
}

func (p *printed) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text.Len() == 0 && len(data) > 0 {
		close(p.first)
	}
	return p.text.Write(data)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// Start starts a program and waits for its first word. The program is killed at the end of the test.
func Start(t *testing.T, name string, cmd *exec.Cmd) *Program {
	t.Helper()
	one := launch(t, cmd)
	for n := 1; ; n++ {
		how := ""
		select {
		case <-one.log.first:
		case <-one.ended:
			if one.log.String() == "" {
				how = fmt.Sprintf("ended with code %d", one.cmd.ProcessState.ExitCode())
			}
		case <-time.After(silence):
			how = "hung (" + threads(one.PID()) + ")"
		}
		if how == "" {
			break
		}
		t.Logf("Wine lost %s before it ran, start %d of %d: it %s without a word", name, n, starts, how)
		if n == starts {
			break
		}
		one.Kill()
		again := exec.CommandContext(t.Context(), cmd.Path, cmd.Args[1:]...)
		again.Env, again.Dir, again.WaitDelay, again.SysProcAttr = cmd.Env, cmd.Dir, cmd.WaitDelay, cmd.SysProcAttr
		one = launch(t, again)
	}
	t.Cleanup(func() {
		one.Kill()
		if t.Failed() {
			text := one.log.String()
			fmt.Fprintf(t.Output(), "%s printed, at its end:\n%s\n", name, text[max(0, len(text)-12000):])
		}
	})
	return one
}

// threads says in which function of the kernel each thread of a process waits (proc_pid_wchan(5)): where a hang is.
func threads(pid int) string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	var waits []string
	for _, file := range files {
		in, err := os.ReadFile(file)
		if err != nil {
			in = []byte(err.Error())
		}
		waits = append(waits, string(in))
	}
	return fmt.Sprintf("%d threads, in %s", len(files), strings.Join(waits, ", "))
}

func launch(t *testing.T, cmd *exec.Cmd) *Program {
	t.Helper()
	one := &Program{cmd: cmd, log: &printed{first: make(chan struct{})}, Begin: time.Now(), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = one.log, one.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(one.ended)
	}()
	return one
}

// Over says whether the program has ended.
func (p *Program) Over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Kill ends a program as kill -9 does.
func (p *Program) Kill() {
	if p != nil && !p.Over() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Stop asks a program to exit and waits; Windows programs receive Ctrl-C.
func (p *Program) Stop() {
	if p != nil && !p.Over() {
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		timer := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
		<-p.ended
		timer.Stop()
	}
}

// Log is what the program has printed so far. It may be called while the program runs.
func (p *Program) Log() string { return p.log.String() }

// PID is the program's id on Linux.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// ExitCode is the code of a program that is Over; -1: it was killed.
func (p *Program) ExitCode() int { return p.cmd.ProcessState.ExitCode() }
