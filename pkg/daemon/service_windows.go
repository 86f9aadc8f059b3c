package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/winkube/winkube/pkg/command"
)

// AddServiceCommand adds `service install|uninstall|start|stop|status|upgrade|rollback` to a program's command.
func AddServiceCommand(root *cobra.Command, program Program) {
	root.AddCommand(newServiceCommand(&serviceCommand{program: program, manager: windowsServices{}, out: os.Stdout, lookup: os.LookupEnv, full: fullVersion}))
}

// fullVersion returns what a program prints with --version=full.
func fullVersion(program string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text, err := command.New().Run(ctx, nil, program, "--version=full")
	return string(text), err
}

// windowsServices is the service manager of this host.
type windowsServices struct{}

func (windowsServices) Elevated() bool { return windows.GetCurrentProcessToken().IsElevated() }

func (windowsServices) Executable() (string, error) { return os.Executable() }

func (windowsServices) Trusted(path string) error { return CheckOwner(path) }

// withService opens a service while do runs.
func withService(name string, access uint32, do func(*mgr.Service) error) error {
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return fmt.Errorf("cannot connect to the service manager: %w", err)
	}
	defer windows.CloseServiceHandle(manager)
	text, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return fmt.Errorf("service %q: %w", name, err)
	}
	handle, err := windows.OpenService(manager, text, access)
	if err != nil {
		return fmt.Errorf("cannot open service %s: %w", name, err)
	}
	s := &mgr.Service{Name: name, Handle: handle}
	defer s.Close()
	return do(s)
}

func (windowsServices) Read(name string) (have *Registration, running *Running, err error) {
	err = withService(name, windows.SERVICE_QUERY_CONFIG|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
		if running, err = query(s); err != nil {
			return err
		}
		have, err = readRegistration(s)
		return err
	})
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return nil, nil, nil
	}
	return have, running, err
}

// Installed returns the flags and the environment (NAME=value) of a program's service; none if it is not installed.
func Installed(name string) (flags, env []string, err error) {
	have, _, err := windowsServices{}.Read(name)
	if err != nil || have == nil {
		return nil, nil, err
	}
	return Program{}.flagsOf(have), have.Env, nil
}

func query(s *mgr.Service) (*Running, error) {
	status, err := s.Query()
	if err != nil {
		return nil, fmt.Errorf("cannot query the state of service %s: %w", s.Name, err)
	}
	out := &Running{State: stateName(uint32(status.State)), PID: int(status.ProcessId)}
	switch code := windows.Errno(status.Win32ExitCode); code {
	case windows.ERROR_SERVICE_SPECIFIC_ERROR:
		out.Exit = int(status.ServiceSpecificExitCode)
	case windows.ERROR_SERVICE_NEVER_STARTED:
	default:
		out.Exit = int(code)
	}
	return out, nil
}

// configSize is the maximum size of a service's configuration (QueryServiceConfig).
const configSize = 8 << 10

func readRegistration(s *mgr.Service) (*Registration, error) {
	buffer, needed := make([]byte, configSize), uint32(0)
	config := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&buffer[0]))
	if err := windows.QueryServiceConfig(s.Handle, config, configSize, &needed); err != nil {
		return nil, fmt.Errorf("cannot read service %s: %w", s.Name, err)
	}
	out := &Registration{Title: windows.UTF16PtrToString(config.DisplayName)}
	var err error
	if out.Argv, err = windows.DecomposeCommandLine(windows.UTF16PtrToString(config.BinaryPathName)); err != nil {
		return nil, fmt.Errorf("cannot read the command line of service %s: %w", s.Name, err)
	}
	more := make([]byte, configSize)
	if windows.QueryServiceConfig2(s.Handle, windows.SERVICE_CONFIG_DESCRIPTION, &more[0], configSize, &needed) == nil {
		out.About = windows.UTF16PtrToString((*windows.SERVICE_DESCRIPTION)(unsafe.Pointer(&more[0])).Description)
	}
	if windows.QueryServiceConfig2(s.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, &more[0], configSize, &needed) == nil {
		out.Shutdown = time.Duration(*(*uint32)(unsafe.Pointer(&more[0]))) * time.Millisecond
	}
	out.Env, err = readEnvironment(s.Name)
	return out, err
}

// servicesKey is below HKEY_LOCAL_MACHINE. A service's value Environment there, one NAME=value per line, is added to the system's environment.
const servicesKey = `SYSTEM\CurrentControlSet\Services\`

func readEnvironment(name string) ([]string, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, servicesKey+name, registry.QUERY_VALUE)
	if err != nil {
		return nil, fmt.Errorf("cannot read the environment of service %s: %w", name, err)
	}
	defer key.Close()
	env, _, err := key.GetStringsValue("Environment")
	if errors.Is(err, registry.ErrNotExist) {
		return nil, nil
	}
	return env, err
}

func writeEnvironment(name string, env []string) error {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, servicesKey+name, registry.SET_VALUE)
	if err != nil {
		return fmt.Errorf("cannot write the environment of service %s: %w", name, err)
	}
	defer key.Close()
	if len(env) > 0 {
		return key.SetStringsValue("Environment", env)
	}
	if err := key.DeleteValue("Environment"); !errors.Is(err, registry.ErrNotExist) {
		return err
	}
	return nil
}

func (windowsServices) Write(name string, want Registration) ([]string, error) {
	if err := create(name, want); err != nil {
		return nil, err
	}
	var lacking []string
	err := withService(name, windows.SERVICE_ALL_ACCESS, func(s *mgr.Service) (err error) {
		line, title := windows.ComposeCommandLine(want.Argv), want.Title
		if err := change(s, line, title); err != nil {
			return err
		}
		lacking, err = setOptions(s, want)
		return err
	})
	return lacking, errors.Join(err, writeEnvironment(name, want.Env), addSource(name))
}

// create creates the service unless it exists.
func create(name string, want Registration) error {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("cannot connect to the service manager: %w", err)
	}
	defer manager.Disconnect()
	s, err := manager.CreateService(name, want.Argv[0], mgr.Config{DisplayName: want.Title, StartType: mgr.StartAutomatic}, want.Argv[1:]...)
	if errors.Is(err, windows.ERROR_SERVICE_EXISTS) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot make service %s: %w", name, err)
	}
	return s.Close()
}

func change(s *mgr.Service, line, title string) error {
	path, err := windows.UTF16PtrFromString(line)
	if err != nil {
		return fmt.Errorf("command line %q: %w", line, err)
	}
	display, err := windows.UTF16PtrFromString(title)
	if err != nil {
		return fmt.Errorf("title %q: %w", title, err)
	}
	const same = windows.SERVICE_NO_CHANGE
	if err := windows.ChangeServiceConfig(s.Handle, same, windows.SERVICE_AUTO_START, same, path, nil, nil, nil, nil, nil, display); err != nil {
		return fmt.Errorf("cannot change service %s: %w", s.Name, err)
	}
	return nil
}

// setOptions sets options that later versions of Windows introduced, and returns those that this service manager does not support.
func setOptions(s *mgr.Service, want Registration) (lacking []string, err error) {
	about, err := windows.UTF16PtrFromString(want.About)
	if err != nil {
		return nil, fmt.Errorf("description %q: %w", want.About, err)
	}
	description, late := windows.SERVICE_DESCRIPTION{Description: about}, windows.SERVICE_DELAYED_AUTO_START_INFO{IsDelayedAutoStartUp: 1}
	shutdown := uint32(want.Shutdown.Milliseconds())
	set := func(what string, err error) {
		if errors.Is(err, windows.ERROR_INVALID_LEVEL) {
			lacking = append(lacking, what)
		} else if err != nil {
			lacking = append(lacking, fmt.Sprintf("%s (%v)", what, err))
		}
	}
	set("description", windows.ChangeServiceConfig2(s.Handle, windows.SERVICE_CONFIG_DESCRIPTION, (*byte)(unsafe.Pointer(&description))))
	set("delayed start", windows.ChangeServiceConfig2(s.Handle, windows.SERVICE_CONFIG_DELAYED_AUTO_START_INFO, (*byte)(unsafe.Pointer(&late))))
	set("time before a shutdown", windows.ChangeServiceConfig2(s.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, (*byte)(unsafe.Pointer(&shutdown))))
	set("restart after a failure", s.SetRecoveryActions(recovery(), uint32((24*time.Hour).Seconds())))
	set("restart after an exit with an error", s.SetRecoveryActionsOnNonCrashFailures(true))
	return lacking, nil
}

// restarts are the pauses before a failed service is restarted; the last one is repeated. The count resets after a day without failure.
var restarts = []time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second}

func recovery() (actions []mgr.RecoveryAction) {
	for _, pause := range restarts {
		actions = append(actions, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: pause})
	}
	return actions
}

// sourcesKey is below HKEY_LOCAL_MACHINE.
const sourcesKey = `SYSTEM\CurrentControlSet\Services\EventLog\Application\`

// addSource lets the event log show our event texts without a message library.
func addSource(name string) error {
	if key, err := registry.OpenKey(registry.LOCAL_MACHINE, sourcesKey+name, registry.QUERY_VALUE); err == nil {
		return key.Close()
	}
	if err := eventlog.InstallAsEventCreate(name, eventlog.Error|eventlog.Warning|eventlog.Info); err != nil {
		return fmt.Errorf("cannot make the source %s of the event log: %w", name, err)
	}
	return nil
}

func (windowsServices) Remove(name string) error {
	err := withService(name, windows.DELETE, (*mgr.Service).Delete)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) || errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE) {
		err = nil
	}
	if gone := eventlog.Remove(name); gone != nil && !errors.Is(gone, registry.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("cannot remove the source %s of the event log: %w", name, gone))
	}
	return err
}

// startPatience and stopPatience are the time limits for starting and stopping a service.
const (
	startPatience = 30 * time.Second
	stopPatience  = 90 * time.Second
)

func (windowsServices) Start(name string) error {
	return withService(name, windows.SERVICE_START|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
		if err := s.Start(); err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
			return fmt.Errorf("cannot start service %s: %w", name, err)
		}
		return reach(s, svc.Running, startPatience)
	})
}

func (windowsServices) Stop(name string) error {
	return withService(name, windows.SERVICE_STOP|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
		if _, err := s.Control(svc.Stop); err != nil && !errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE) {
			return fmt.Errorf("cannot stop service %s: %w", name, err)
		}
		return reach(s, svc.Stopped, stopPatience)
	})
}

// reach waits until a service is in a state. It polls: Windows reports changes only to threads in alertable waits, which Go's are not.
func reach(s *mgr.Service, want svc.State, patience time.Duration) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		now, err := query(s)
		switch {
		case err != nil:
			return err
		case now.State == stateName(uint32(want)):
			return nil
		case now.State == stateStopped:
			return fmt.Errorf("service %s stopped again with code %d", s.Name, now.Exit)
		case time.Now().After(end):
			return fmt.Errorf("service %s is in state %q after %s, want %q", s.Name, now.State, patience, stateName(uint32(want)))
		}
	}
}

// serviceState is the state of another service; "" if it does not exist.
func serviceState(name string) (string, error) {
	var state string
	err := withService(name, windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
		now, err := query(s)
		if err == nil {
			state = now.State
		}
		return err
	})
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return "", nil
	}
	return state, err
}
