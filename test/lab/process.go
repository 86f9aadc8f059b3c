package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Process is a program on a host that runs until it is stopped, and survives the program that started it.
type Process struct {
	Name string

	host *Host
	// argv is called at each start; its first element is the program's path.
	argv func() []string
	// unwanted reports that the process should not run now; nil: it always should.
	unwanted func() bool
	// files returns descriptors 3, 4, ... of the program. It is called at each start; the files are closed afterwards.
	files func() ([]*os.File, error)

	mu sync.Mutex
}

// record describes a started process.
type record struct {
	PID   int
	Start uint64 // start time in clock ticks since boot: identifies the process if its PID is reused
	Key   string // digest of the command line and the program file
}

// Log is the path of the process's log. The first start after Down truncates it; other starts append.
func (p *Process) Log() string { return p.host.Dir(p.Name + ".log") }

func (p *Process) recordPath() string { return p.host.Dir(p.Name + ".process") }

// Argv returns the command line for the next start.
func (p *Process) Argv() []string { return append(p.argv(), p.host.ExtraArgs[p.Name]...) }

// Running reports whether the process runs.
func (p *Process) Running() bool { _, ok := p.PID(); return ok }

// PID returns the process ID, or false if the process does not run.
func (p *Process) PID() (int, bool) {
	r, ok := p.load()
	return r.PID, ok
}

// Since returns when the process was started; zero if unknown.
func (p *Process) Since() time.Time {
	info, err := os.Stat(p.recordPath())
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func (p *Process) load() (record, bool) {
	var r record
	data, err := os.ReadFile(p.recordPath())
	if err != nil || json.Unmarshal(data, &r) != nil {
		return r, false
	}
	start, alive := startTime(r.PID)
	return r, alive && start == r.Start
}

// startTime returns when a process started; false if it does not exist or is a zombie.
func startTime(pid int) (uint64, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name before it may contain anything
	fields := strings.Fields(rest)
	// A killed process ends with its last thread: its first thread may be a zombie while another still holds the
	// listeners.
	if len(fields) < 20 || fields[0] == "Z" && (fields[17] == "0" || fields[17] == "1") || fields[0] == "X" {
		return 0, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, err == nil
}

// key returns a value that changes with the program or the command line.
func (p *Process) key() string {
	argv := p.Argv()
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q", argv, p.host.ExtraEnv[p.Name])
	if info, err := os.Stat(argv[0]); err == nil {
		fmt.Fprintf(hash, "%d %d", info.Size(), info.ModTime().UnixNano())
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

func (p *Process) wanted() bool { return p.unwanted == nil || !p.unwanted() }

// Ensure starts the process if it does not run, and restarts it if its program or command line changed. It stops an
// unwanted process.
func (p *Process) Ensure(ctx context.Context) error {
	if !p.wanted() {
		return p.Stop(ctx)
	}
	r, running := p.load()
	if running && r.Key == p.key() {
		return nil
	}
	if running {
		if err := p.Stop(ctx); err != nil {
			return err
		}
	}
	return p.Start(ctx)
}

// Revive starts the process if it should run but does not, and reports whether it did.
func (p *Process) Revive(ctx context.Context) (bool, error) {
	if !p.wanted() || p.Running() {
		return false, nil
	}
	return true, p.Start(ctx)
}

// Start starts the process unless it already runs. It does not wait until the program is ready.
func (p *Process) Start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Running() {
		return nil
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if _, err := os.Stat(p.recordPath()); err != nil {
		mode |= os.O_TRUNC
	}
	log, err := os.OpenFile(p.Log(), mode, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()

	key := p.key()
	// setsid and nsenter exec the program: no other process remains, and its PID is that of cmd.
	cmd := exec.Command("setsid", append(append([]string{"nsenter"}, p.host.enter()...), p.Argv()...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = p.host.Dir()
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if dirs := p.host.programs(); dirs != "" && (p.Name == "containerd" || p.Name == "dockerd") { // they look for shims and runc in PATH
		path = dirs + ":" + path
	}
	cmd.Env = append([]string{"PATH=" + path, "HOME=" + p.host.Dir()}, p.host.ExtraEnv[p.Name]...)
	if p.files != nil {
		if cmd.ExtraFiles, err = p.files(); err != nil {
			return fmt.Errorf("cannot start %s on %s: %w", p.Name, p.host.Name, err)
		}
		for _, file := range cmd.ExtraFiles {
			defer file.Close()
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s on %s: %w", p.Name, p.host.Name, err)
	}
	r := record{PID: cmd.Process.Pid, Key: key}
	r.Start, _ = startTime(r.PID)
	go func() { _ = cmd.Wait() }() // reaps it if it ends before this program
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(p.recordPath(), data, 0o644)
}

// Stop asks the process to exit and waits; after a minute it kills it.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.signal(ctx, syscall.SIGTERM, time.Minute); err == nil || ctx.Err() != nil {
		return err
	}
	return p.Kill9(ctx)
}

// Kill9 kills the process with SIGKILL and returns when it is gone.
func (p *Process) Kill9(ctx context.Context) error {
	return p.signal(ctx, syscall.SIGKILL, time.Minute)
}

// Restart stops and starts the process.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.Start(ctx)
}

func (p *Process) signal(ctx context.Context, signal syscall.Signal, patience time.Duration) error {
	pid, running := p.PID()
	if !running {
		return nil
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := process.Signal(signal); err != nil && p.Running() {
		return fmt.Errorf("cannot send %s to %s on %s: %w", signal, p.Name, p.host.Name, err)
	}
	err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, patience, true, func(context.Context) (bool, error) { return !p.Running(), nil })
	if err != nil {
		return fmt.Errorf("%s on %s (pid %d) does not end after %s: %w", p.Name, p.host.Name, pid, signal, err)
	}
	return nil
}

// await polls ready until it returns nil. It returns a LogError when the process ends, ctx is done or patience is over.
func (p *Process) await(ctx context.Context, patience time.Duration, ready func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if last = ready(ctx); last == nil {
			return true, nil
		}
		if !p.Running() {
			return false, fmt.Errorf("%s on %s ended", p.Name, p.host.Name)
		}
		return false, nil
	})
	if err == nil {
		return nil
	}
	if wait.Interrupted(err) {
		err = fmt.Errorf("%s on %s is not ready after %s: %w", p.Name, p.host.Name, patience, last)
	}
	return &LogError{Err: err, Log: p.Log()}
}
