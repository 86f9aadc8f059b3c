package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Program describes one of our programs as a Windows service.
type Program struct {
	Name  string // of the service and of its event source: kubelet, kube-proxy
	Title string // for people, in the list of services
	About string // one sentence, for the same list
	// Command are the words of the subcommand that the service runs: cri. Empty: the program itself; only that one can be upgraded.
	Command []string
	// Beside names the other services that run this program. An upgrade restarts the running ones: Windows locks the file of a running program.
	Beside []string
	// Env names environment variables that the program uses. A service keeps those that are set at its installation.
	Env []string
	// Check validates the program's flags, and returns how long it needs when Windows shuts down (0: no extra time).
	Check func(args []string) (shutdown time.Duration, err error)
	// Prepare creates what the program's flags require on the host before its service is installed. It is idempotent; may be nil.
	Prepare func(args []string) error
	// Skew queries the API server of the program's flags and returns an error if this version is incompatible with it. May be nil.
	Skew func(args []string) error
}

// Registration is the service manager's record of a service.
type Registration struct {
	Title, About string
	Argv         []string      // the program and its arguments
	Env          []string      // NAME=value, in addition to the system's
	Shutdown     time.Duration // time that Windows grants it before a shutdown (SERVICE_CONFIG_PRESHUTDOWN_INFO)
}

// Running is a service's current state.
type Running struct {
	State string // stopped, start pending, stop pending, running, continue pending, pause pending, paused
	PID   int
	Exit  int // of its last run; 0: none, or successful
}

const (
	stateRunning = "running"
	stateStopped = "stopped"
)

// serviceManager is Windows' service manager. All methods are idempotent. Errors are the system's own, with the failed operation.
type serviceManager interface {
	// Elevated says whether this process may change services.
	Elevated() bool
	// Executable is the absolute path of this program.
	Executable() (string, error)
	// Read returns nil if there is no such service.
	Read(name string) (*Registration, *Running, error)
	// Write creates or updates the service: delayed automatic start, restart after each failure, an event log source. It returns the settings that
	// this service manager does not support.
	Write(name string, want Registration) (lacking []string, err error)
	// Remove also removes the source in the event log. A missing service is not an error.
	Remove(name string) error
	// Start and Stop return when the service runs, or has stopped.
	Start(name string) error
	Stop(name string) error
	// Trusted refuses a program that is not owned by the administrator or the system. A missing program is not an error.
	Trusted(path string) error
}

// leastShutdown is the time that a service needs for a graceful stop.
const leastShutdown = 30 * time.Second

// serviceCommand implements `PROGRAM service VERB`.
type serviceCommand struct {
	program Program
	manager serviceManager
	out     io.Writer
	lookup  func(env string) (string, bool)
	full    func(program string) (string, error) // what a program prints with --version=full
	older   bool                                 // an upgrade may go to an older version
}

func (c *serviceCommand) do(verb string, args []string) error {
	if verb != "status" && !c.manager.Elevated() {
		return fmt.Errorf("service %s: this needs administrator rights: open PowerShell with \"Run as administrator\" and run it again", verb)
	}
	var err error
	switch verb {
	case "install":
		err = c.install(args)
	case "uninstall":
		err = c.uninstall()
	case "start":
		err = c.start()
	case "stop":
		err = c.stop()
	case "status":
		err = c.status()
	case "upgrade":
		err = c.upgrade()
	case "rollback":
		err = c.rollback()
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", verb, err)
	}
	return nil
}

func (c *serviceCommand) say(format string, args ...any) {
	fmt.Fprintf(c.out, "%s: %s\n", c.program.Name, fmt.Sprintf(format, args...))
}

// install creates or updates the service. Without arguments it keeps the existing ones.
func (c *serviceCommand) install(args []string) error {
	have, running, err := c.manager.Read(c.program.Name)
	if err != nil {
		return err
	}
	if have != nil && len(args) == 0 {
		args = c.program.flagsOf(have)
	}
	want, err := c.registration(args, have)
	if err != nil {
		return err
	}
	if have != nil && same(*have, want) {
		c.say("is already installed with these settings")
		return nil
	}
	if c.program.Prepare != nil {
		if err := c.program.Prepare(args); err != nil {
			return err
		}
	}
	lacking, err := c.manager.Write(c.program.Name, want)
	if err != nil {
		return err
	}
	for _, what := range lacking {
		c.say("note: this service manager has no %s", what)
	}
	switch {
	case have == nil:
		c.say("installed; it starts with Windows; to start it now: service start")
	case running.State == stateRunning:
		c.say("changed; restart the service to apply it: service stop, service start")
	default:
		c.say("changed")
	}
	return nil
}

// flagsOf returns the flags of an installed service, without its program and subcommand.
func (p Program) flagsOf(have *Registration) []string {
	args := have.Argv[min(1, len(have.Argv)):]
	if words := len(p.Command); len(args) >= words && slices.Equal(args[:words], p.Command) {
		args = args[words:]
	}
	return args
}

// registration returns the wanted record in the service manager.
func (c *serviceCommand) registration(args []string, have *Registration) (Registration, error) {
	program, err := c.manager.Executable()
	if err != nil {
		return Registration{}, err
	}
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--windows-service" || arg == "--windows-service=true" })
	shutdown, err := c.program.Check(args)
	if err != nil {
		return Registration{}, err
	}
	argv := slices.Concat([]string{program}, c.program.Command, []string{"--windows-service"})
	if !slices.ContainsFunc(args, logs) {
		argv = append(argv, `--log-file=C:\var\log\`+c.program.Name+`\`+c.program.Name+`.log`)
	}
	want := Registration{Title: c.program.Title, About: c.program.About, Argv: append(argv, args...), Shutdown: max(shutdown, leastShutdown)}
	for _, name := range c.program.Env {
		value, set := c.lookup(name)
		if !set && have != nil { // as with arguments: a shell that lacks the variable does not remove it
			value, set = valueOf(have.Env, name)
		}
		if set && value != "" {
			want.Env = append(want.Env, name+"="+value)
		}
	}
	return want, nil
}

// CheckPaths refuses relative paths in parsed flags: a service does not start in the directory in which it was installed.
func CheckPaths(fs *pflag.FlagSet) error {
	var errs []error
	fs.Visit(func(f *pflag.Flag) {
		what, _ := pflag.UnquoteUsage(f)
		path := f.Value.String()
		if slices.Contains([]string{"file", "directory"}, what) && path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("--%s=%s: want an absolute path: a service does not start in this directory", f.Name, path))
		}
	})
	return errors.Join(errs...)
}

// logs says whether an argument sets the destination of the log.
func logs(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return slices.Contains([]string{"log-file", "log-dir"}, strings.ReplaceAll(name, "_", "-"))
}

func valueOf(env []string, name string) (string, bool) {
	for _, entry := range env {
		if key, value, _ := strings.Cut(entry, "="); strings.EqualFold(key, name) {
			return value, true
		}
	}
	return "", false
}

// same compares the fields that every service manager returns.
func same(a, b Registration) bool {
	return a.Title == b.Title && a.About == b.About && a.Shutdown == b.Shutdown && slices.Equal(a.Argv, b.Argv) && slices.Equal(a.Env, b.Env)
}

func (c *serviceCommand) uninstall() error {
	have, running, err := c.manager.Read(c.program.Name)
	if err != nil {
		return err
	}
	if have != nil && running.State != stateStopped {
		if err := c.manager.Stop(c.program.Name); err != nil {
			return err
		}
	}
	if err := c.manager.Remove(c.program.Name); err != nil {
		return err
	}
	if have == nil {
		c.say("is not installed")
		return nil
	}
	c.say("uninstalled; logs and data were kept")
	return nil
}

// errNotInstalled says what to do.
var errNotInstalled = errors.New("the service is not installed; install it with service install, followed by the program's flags")

func (c *serviceCommand) start() error {
	return c.to(stateRunning, c.manager.Start, "runs")
}

func (c *serviceCommand) stop() error {
	return c.to(stateStopped, c.manager.Stop, "stopped")
}

// to changes the state of a service.
func (c *serviceCommand) to(state string, do func(string) error, done string) error {
	have, running, err := c.manager.Read(c.program.Name)
	switch {
	case err != nil:
		return err
	case have == nil:
		return errNotInstalled
	case running.State == state:
		c.say("%s already", done)
		return nil
	}
	if err := do(c.program.Name); err != nil {
		return fmt.Errorf("%w (see its messages in the event log: Get-EventLog Application -Source %s -Newest 5)", err, c.program.Name)
	}
	c.say("%s", done)
	return nil
}

func (c *serviceCommand) status() error {
	have, running, err := c.manager.Read(c.program.Name)
	if err != nil {
		return err
	}
	if have == nil {
		return errNotInstalled
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, cmp.Or(value, "-")) }
	row("SERVICE", c.program.Name)
	row("STATE", running.State)
	row("PROCESS", number(running.PID))
	row("LAST EXIT CODE", strconv.Itoa(running.Exit))
	row("TIME AT SHUTDOWN", have.Shutdown.String())
	row("PROGRAM", have.Argv[0])
	for i, arg := range have.Argv[1:] {
		row([]string{"ARGUMENTS", " "}[min(i, 1)], arg)
	}
	for i, entry := range have.Env {
		row([]string{"ENVIRONMENT", " "}[min(i, 1)], entry)
	}
	return w.Flush()
}

// number is "" for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// stateName is the readable name of a SERVICE_STATUS.dwCurrentState.
func stateName(state uint32) string {
	names := []string{stateStopped, "start pending", "stop pending", stateRunning, "continue pending", "pause pending", "paused"}
	if state < 1 || int(state) > len(names) {
		return fmt.Sprintf("unknown (%d)", state)
	}
	return names[state-1]
}

// newServiceCommand returns `PROGRAM service`. Everything after install is the program's own command line, so it is not parsed here.
func newServiceCommand(c *serviceCommand) *cobra.Command {
	parent := &cobra.Command{Use: "service", Short: "Manages this program as a Windows service", Args: cobra.NoArgs}
	verb := func(use, short string) *cobra.Command {
		name, _, _ := strings.Cut(use, " ")
		return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(_ *cobra.Command, args []string) error { return c.do(name, args) }}
	}
	install := verb("install [flags of the program]", "Creates or changes the service; without flags it keeps its present ones")
	install.Args, install.DisableFlagParsing = nil, true
	install.RunE = func(command *cobra.Command, args []string) error {
		if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
			return command.Help()
		}
		if len(args) > 0 && args[0] == "--" {
			args = args[1:]
		}
		return c.do("install", args)
	}
	parent.AddCommand(install, verb("uninstall", "Stops and removes the service; logs and data stay"), verb("start", "Starts the service and waits until it runs"),
		verb("stop", "Stops the service and waits; pods keep running"), verb("status", "Prints the service's state and settings"))
	if len(c.program.Command) == 0 {
		upgrade := verb("upgrade", "Replaces the service's program with this one and restarts it; pods keep running")
		upgrade.Flags().BoolVar(&c.older, "allow-downgrade", false, "also replace a newer version")
		parent.AddCommand(upgrade, verb("rollback", "Restores the service's previous program; pods keep running"))
	}
	return parent
}
