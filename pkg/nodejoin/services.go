package nodejoin

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/pkg/command"
)

// Service is one of our programs as a service.
type Service struct {
	Name    string // kubelet, proxy
	Program string
	Flags   []string
}

// Services manages the services of this host, using Windows' service manager or systemd.
type Services interface {
	// Check says why a service cannot be installed, before anything is changed.
	Check(s Service) error
	// Ensure makes the service run with these flags, now and after each boot. It restarts the service if something differed or if again is set.
	Ensure(ctx context.Context, s Service, again bool) (changed bool, err error)
	// Installed returns the flags and the environment (NAME=value) with which the service runs; none if it is not installed.
	Installed(s Service) (flags, env []string, err error)
	// Stop stops the service. A missing service is not an error.
	Stop(ctx context.Context, s Service) error
	// Remove stops the service and removes it. A missing service is not an error.
	Remove(ctx context.Context, s Service) (removed bool, err error)
}

// ReadService returns the flags and the environment of a Windows service, by the service manager's name: daemon.Installed.
type ReadService func(name string) (flags, env []string, err error)

// NewServices returns the Services for a host of layout l. Only Windows uses read.
func NewServices(l Layout, run command.Runner, read ReadService) Services {
	if l.OS == "windows" {
		return windowsServices{run, read}
	}
	return systemd{l, run}
}

// windowsServices uses the installed programs: `kubelet.exe service install`, which checks the flags first.
type windowsServices struct {
	run  command.Runner
	read ReadService
}

// registered are our programs' names in Windows' service manager.
var registered = map[string]string{"kubelet": "kubelet", "proxy": "kube-proxy"}

// Check implements Services: the program checks its own flags.
func (windowsServices) Check(Service) error { return nil }

// unchanged is part of the output of `service install` if nothing differs.
const unchanged = "is already installed with these settings"

// Ensure implements Services.
func (w windowsServices) Ensure(ctx context.Context, s Service, again bool) (changed bool, err error) {
	output, err := w.run.Run(ctx, nil, s.Program, append([]string{"service", "install"}, s.Flags...)...)
	if err != nil {
		return false, err
	}
	changed = !strings.Contains(string(output), unchanged)
	if changed || again {
		if _, err := w.run.Run(ctx, nil, s.Program, "service", "stop"); err != nil {
			return changed, err
		}
	}
	output, err = w.run.Run(ctx, nil, s.Program, "service", "start")
	return changed || again || !strings.Contains(string(output), "already"), err
}

// Installed implements Services.
func (w windowsServices) Installed(s Service) (flags, env []string, err error) {
	return w.read(registered[s.Name])
}

// notInstalled is part of the output of `service stop` and `service uninstall` if there is no such service.
const notInstalled = "is not installed"

// Stop implements Services.
func (w windowsServices) Stop(ctx context.Context, s Service) error {
	_, err := w.run.Run(ctx, nil, s.Program, "service", "stop")
	if err != nil && strings.Contains(err.Error(), notInstalled) {
		return nil
	}
	return err
}

// Remove implements Services. Without the program the service cannot run either.
func (w windowsServices) Remove(ctx context.Context, s Service) (removed bool, err error) {
	output, err := w.run.Run(ctx, nil, s.Program, "service", "uninstall")
	if errors.Is(err, command.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return !strings.Contains(string(output), notInstalled), err
}

//go:embed units/*.service
var units embed.FS

// mark is the first line of files that we may change and remove.
const mark = "# Written by `kubelet node join`; `kubelet node leave` removes it.\n"

// systemd writes unit files and their settings, and reloads systemd.
type systemd struct {
	layout Layout
	run    command.Runner
}

// variables are the unit files' variables for flags.
var variables = map[string]string{"kubelet": "KUBELET_EXTRA_ARGS", "proxy": "PROXY_ARGS"}

func (s systemd) unit(of Service) string {
	return filepath.Join(s.layout.Units, of.Name+".service")
}
func (s systemd) settings(of Service) string { return filepath.Join(s.layout.Defaults, of.Name) }

// content returns the content of a service's files.
func (s systemd) content(of Service) (map[string]string, error) {
	unit, err := units.ReadFile("units/" + of.Name + ".service")
	if err != nil {
		return nil, err
	}
	text := strings.ReplaceAll(string(unit), "/usr/bin/"+of.Name, of.Program)
	text = strings.ReplaceAll(text, "/etc/default/", s.layout.Defaults+"/")
	return map[string]string{
		s.unit(of):     mark + text,
		s.settings(of): mark + variables[of.Name] + "=\"" + strings.Join(of.Flags, " ") + "\"\n",
	}, nil
}

// Check implements Services.
func (s systemd) Check(of Service) error {
	for _, flag := range of.Flags {
		if strings.ContainsAny(flag, " \t\n\"'\\$`") {
			return fmt.Errorf("flag %q for %s: systemd splits settings at spaces and reads quotes, backslashes and $; want a flag without them", flag, of.Name)
		}
	}
	for _, dir := range []string{s.layout.Units, s.layout.Vendor} { // systemd reads drop-ins of both, whichever has the unit
		if dropIn := filepath.Join(dir, of.Name+".service.d", "10-kubeadm.conf"); dir != "" && there(dropIn) {
			return fmt.Errorf("%s exists: this host is set up for kubeadm; run `kubeadm join`, or remove that file (in /usr: its package) first", dropIn)
		}
	}
	for _, path := range []string{s.unit(of), s.settings(of)} {
		if text, err := os.ReadFile(path); err == nil && !bytes.HasPrefix(text, []byte(mark)) {
			return fmt.Errorf("%s exists and `kubelet node join` did not write it; move it away first", path)
		}
	}
	return nil
}

// Ensure implements Services.
func (s systemd) Ensure(ctx context.Context, of Service, again bool) (changed bool, err error) {
	want, err := s.content(of)
	if err != nil {
		return false, err
	}
	for _, path := range []string{s.unit(of), s.settings(of)} {
		wrote, err := writeFile(path, []byte(want[path]), 0o644)
		if err != nil {
			return changed, err
		}
		changed = changed || wrote
	}
	if changed {
		if err := s.systemctl(ctx, "daemon-reload"); err != nil {
			return true, err
		}
		if err := s.systemctl(ctx, "enable", of.Name); err != nil {
			return true, err
		}
	}
	if changed || again {
		return true, s.systemctl(ctx, "restart", of.Name)
	}
	if s.systemctl(ctx, "is-active", of.Name) == nil {
		return false, nil
	}
	return true, s.systemctl(ctx, "start", of.Name)
}

// Installed implements Services. It reads the settings, which an administrator may have changed, as systemd does (EnvironmentFile in
// systemd.exec(5)), except for values of several lines.
func (s systemd) Installed(of Service) (flags, env []string, err error) {
	text, err := os.ReadFile(s.settings(of))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for line := range strings.Lines(string(text)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(name, "#") || strings.HasPrefix(name, ";") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n > 1 && value[0] == value[n-1] && (value[0] == '"' || value[0] == '\'') {
			value = value[1 : n-1]
		}
		if name == variables[of.Name] {
			flags = strings.Fields(value)
		} else {
			env = append(env, name+"="+value)
		}
	}
	return flags, env, err
}

// Stop implements Services. It leaves a unit alone that join did not write, as Remove does.
func (s systemd) Stop(ctx context.Context, of Service) error {
	if unit, err := os.ReadFile(s.unit(of)); err != nil || !bytes.HasPrefix(unit, []byte(mark)) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return s.systemctl(ctx, "stop", of.Name)
}

// Remove implements Services. It leaves a unit alone that join did not write.
func (s systemd) Remove(ctx context.Context, of Service) (removed bool, err error) {
	unit, err := os.ReadFile(s.unit(of))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := removeMarked(s.settings(of))
		return false, err
	}
	if err != nil || !bytes.HasPrefix(unit, []byte(mark)) {
		return false, err
	}
	if err := s.systemctl(ctx, "stop", of.Name); err != nil {
		return false, err
	}
	if err := s.systemctl(ctx, "disable", of.Name); err != nil {
		return false, err
	}
	for _, path := range []string{s.settings(of), s.unit(of)} {
		if _, err := removeMarked(path); err != nil {
			return false, err
		}
	}
	return true, s.systemctl(ctx, "daemon-reload")
}

func (s systemd) systemctl(ctx context.Context, args ...string) error {
	_, err := s.run.Run(ctx, nil, "systemctl", args...)
	return err
}

// removeMarked removes a file that join wrote.
func removeMarked(path string) (removed bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.HasPrefix(text, []byte(mark)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, os.Remove(path)
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// writeFile replaces a file by data atomically. wrote is false if it already has that content.
func writeFile(path string, data []byte, mode fs.FileMode) (wrote bool, err error) {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return false, nil
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return false, err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		_ = os.Remove(temp)
		return false, err
	}
	return true, os.Rename(temp, path)
}
