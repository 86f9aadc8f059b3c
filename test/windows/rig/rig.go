// Package rig runs Windows programs on Linux under Wine, each in its own prefix, which reports one build of Windows Server.
//
//	template (made once) --hard links--> Prefix{Build, DLLs, registry} --Command--> kubelet.exe, proxy.exe, test binaries
//
// A green run proves that our calls are made and their answers handled; it does not prove that Windows accepts them. Wine never runs
// as root: if root starts the rig, Wine runs under an unprivileged uid.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/winkube/winkube/test/output"
)

// Builds are the Windows Servers that the rig can simulate: 2016, 2019, 2022, 2025.
var Builds = []int{14393, 17763, 20348, 26100}

// Wanted returns the builds that tests run on: those in WINKUBE_WINDOWS, or all if it is unset.
func Wanted(builds ...int) []int {
	only := strings.Fields(os.Getenv("WINKUBE_WINDOWS"))
	return slices.DeleteFunc(slices.Clone(builds), func(build int) bool { return len(only) > 0 && !slices.Contains(only, strconv.Itoa(build)) })
}

// Prefix is an installation of Wine, like a newly installed Windows. Its methods may be called concurrently.
type Prefix struct {
	Build int
	Dir   string // on Linux; drive C is below it
	// Log receives programs' standard error, and the errors of programs that fail; nil discards it. Set it before the first program runs.
	Log io.Writer

	netns string // empty means the caller's network
	as    account
	guest string // the rig's own exe

	mu     sync.Mutex
	keeper *exec.Cmd
	leash  io.Closer // closing it ends the keeper
	noise  []string  // see learnNoise
}

// Open creates a prefix of that build in the caller's network and starts it. Close removes it. An error names the missing Debian
// package or quotes Wine.
func Open(ctx context.Context, build int) (*Prefix, error) { return OpenIn(ctx, build, "") }

// OpenIn is Open in the network namespace of that name. The wineserver opens all sockets, so that the whole prefix runs in the
// namespace.
func OpenIn(ctx context.Context, build int, netns string) (*Prefix, error) {
	version, ok := versions[build]
	if !ok {
		return nil, fmt.Errorf("cannot claim to be Windows build %d: want one of %v", build, Builds)
	}
	if err := installed(); err != nil {
		return nil, err
	}
	as, err := who()
	if err != nil {
		return nil, err
	}
	home, err := template(ctx, as)
	if err != nil {
		return nil, err
	}
	guest, err := buildGuest(ctx)
	if err != nil {
		return nil, err
	}
	p := &Prefix{Build: build, netns: netns, as: as, guest: guest}
	if p.Dir, err = clone(ctx, home, build); err != nil {
		return nil, err
	}
	if err := p.Own(p.counters()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.Dir))
	}
	services := section(environmentKey, fmt.Sprintf("%q=%q", countersVariable, WindowsPath(p.counters())))
	if err := p.boot(ctx, version.registry(build)+services); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// boot writes registry values before anything else runs, and starts the keeper.
func (p *Prefix) boot(ctx context.Context, reg string) error {
	if err := p.importRegistry(ctx, reg); err != nil {
		return err
	}
	if err := p.keep(ctx); err != nil {
		return err
	}
	if err := p.learnNoise(ctx); err != nil {
		return err
	}
	got, err := p.ask(ctx, "build")
	if err != nil {
		return err
	}
	if got = strings.TrimSpace(got); got != "10.0."+strconv.Itoa(p.Build)+" server" {
		return fmt.Errorf("the prefix should claim to be a server of build %d, but claims %q", p.Build, got)
	}
	return nil
}

// keep starts the keeper: Wine ends its services a few seconds after the last program exits.
func (p *Prefix) keep(ctx context.Context) error {
	cmd, leash, err := p.stay(ctx, "keep")
	if err != nil {
		return fmt.Errorf("cannot keep %s: %w", p.Dir, err)
	}
	p.mu.Lock()
	p.keeper, p.leash = cmd, leash
	p.mu.Unlock()
	return nil
}

// Close ends everything that runs in the prefix, and removes it.
func (p *Prefix) Close() error {
	return errors.Join(p.halt(), os.RemoveAll(p.Dir))
}

// halt kills every program of the prefix, like a power failure. Files and the saved registry remain.
func (p *Prefix) halt() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leash != nil {
		_ = p.leash.Close()
	}
	err := stopServer(ctx, p.as, p.Dir)
	if p.keeper != nil {
		_ = p.keeper.Wait() // it was killed: its status means nothing
	}
	p.keeper, p.leash = nil, nil
	return err
}

// Reboot ends every program and starts the prefix again, with a new boot ID. Files and the registry remain.
func (p *Prefix) Reboot(ctx context.Context) error {
	id, err := p.Registry(ctx, bootKey, "BootId")
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(id, "0x"), 16, 32)
	if err != nil {
		return fmt.Errorf("cannot read BootId: %w", err)
	}
	if err := p.SetRegistry(ctx, bootKey, "BootId", uint32(n)+1); err != nil {
		return err
	}
	// Wine writes the registry to disk when the wineserver exits normally.
	if err := p.shutdown(ctx); err != nil {
		return err
	}
	return p.keep(ctx)
}

// shutdown ends every program and waits until the registry is on disk.
func (p *Prefix) shutdown(ctx context.Context) error {
	if _, err := p.Run(ctx, "wineboot.exe", "-e", "-f"); err != nil {
		return err
	}
	return p.halt()
}

// SystemDir returns the Linux path of C:\Windows\System32.
func (p *Prefix) SystemDir() string { return filepath.Join(p.Dir, "drive_c/windows/system32") }

// Path returns the Linux path of a file on drive C: Path(`C:\k\pods`). Other drives are not supported.
func (p *Prefix) Path(windows string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(windows, "C:"), "c:")
	return filepath.Join(p.Dir, "drive_c", filepath.FromSlash(strings.ReplaceAll(rest, `\`, "/")))
}

// Own creates a directory that programs of the prefix may write to.
func (p *Prefix) Own(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return p.as.own(dir)
}

// WriteProgram writes an executable file that the prefix's account owns, as if its administrator had copied it.
func (p *Prefix) WriteProgram(path string, data []byte) error {
	if err := os.WriteFile(path, data, 0o755); err != nil {
		return err
	}
	return p.as.own(path)
}

// WindowsPath returns the path by which programs in a prefix open a file of this machine. linux is absolute.
func WindowsPath(linux string) string { return "Z:" + strings.ReplaceAll(linux, "/", `\`) }

// Command prepares a program in the prefix; exe is the path of a file on Linux, or the name of one in System32 (reg.exe). Its environment is
// minimal: add to Env what the program needs. Killing the command kills its Windows process.
func (p *Prefix) Command(ctx context.Context, exe string, args ...string) *exec.Cmd {
	if !strings.ContainsAny(exe, `/\`) {
		exe = `C:\windows\system32\` + exe
	}
	argv := append(p.as.become(p.netns), append([]string{wine, exe}, args...)...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(environment(p.Dir), countersVariable+"="+WindowsPath(p.counters()))
	cmd.Dir = p.Path(`C:\`)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// attempts is how often a program that exits without output is started.
const attempts = 3

// Run runs a program until it exits and returns its standard output; an error contains both streams. Programs report why they fail. If one
// fails without output, Wine lost it before it ran, as happened once in some hundred starts on a busy machine, and Run starts it again.
func (p *Prefix) Run(ctx context.Context, exe string, args ...string) (stdout string, err error) {
	for range attempts {
		cmd := p.Command(ctx, exe, args...)
		said, failed := p.Finish(cmd)
		if stdout, err = said.Stdout, nil; failed == nil {
			break
		}
		if err = describe(cmd, said, failed); said.String() != "" || ctx.Err() != nil {
			break
		}
	}
	return stdout, err
}

// Finish runs a prepared program until it exits and returns its own output: standard error excludes the lines that libraries print for any
// program. Standard error also goes to Log.
func (p *Prefix) Finish(cmd *exec.Cmd) (output.Said, error) {
	said, err := output.Of(cmd)
	said.Stderr = p.withoutNoise(said.Stderr)
	if log := p.Log; log != nil && said.Stderr != "" {
		args := cmd.Args[slices.Index(cmd.Args, wine)+1:]
		fmt.Fprintf(log, "%s: %s\n", strings.Join(args, " "), strings.TrimSpace(said.Stderr))
	}
	return said, err
}

// ask runs the rig's own program, which changes nothing and always prints something, and returns its output. Without output it did not run, and ask
// starts it again.
func (p *Prefix) ask(ctx context.Context, args ...string) (out string, err error) {
	for range attempts {
		if out, err = p.Run(ctx, p.guest, args...); out != "" {
			break
		}
	}
	return out, err
}

// learnNoise records the lines on standard error of a program that prints nothing itself: Wine uses the machine's libraries, which complain
// about the machine.
func (p *Prefix) learnNoise(ctx context.Context) error {
	cmd := p.Command(ctx, "cmd.exe", "/c", "exit 0")
	said, err := output.Of(cmd)
	if err != nil {
		return describe(cmd, said, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noise = nil
	for line := range strings.Lines(said.Stderr) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(p.noise, line) {
			p.noise = append(p.noise, line)
		}
	}
	return nil
}

func (p *Prefix) withoutNoise(stderr string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.noise) == 0 {
		return stderr
	}
	var kept strings.Builder
	for line := range strings.Lines(stderr) {
		if !slices.Contains(p.noise, strings.TrimSpace(line)) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// finish runs a Linux program until it exits and returns its standard output.
func finish(cmd *exec.Cmd) (stdout string, err error) {
	said, err := output.Of(cmd)
	if err != nil {
		err = describe(cmd, said, err)
	}
	return said.Stdout, err
}

func describe(cmd *exec.Cmd, said output.Said, err error) error {
	return fmt.Errorf("cannot run %s: %w: %s", strings.Join(cmd.Args, " "), err, said)
}
