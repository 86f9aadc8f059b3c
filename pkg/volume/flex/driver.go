package flex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/turns"
)

// notSupported is the status that a driver without a call answers, as upstream has it.
const notSupported = "Not supported"

var errNotSupported = errors.New(`the driver answered "` + notSupported + `"`)

// capabilities are a driver's answer to init. Capabilities that it omits are those of defaults.
type capabilities struct {
	Attach           bool `json:"attach"`
	SELinuxRelabel   bool `json:"selinuxRelabel"`
	SupportsMetrics  bool `json:"supportsMetrics"`
	FSGroup          bool `json:"fsGroup"`
	RequiresFSResize bool `json:"requiresFSResize"`
}

// defaults are upstream's.
func defaults() capabilities {
	return capabilities{Attach: true, SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true}
}

// answer is what a driver prints.
type answer struct {
	Status       string       `json:"status"`
	Message      string       `json:"message"`
	Device       string       `json:"device"`
	Capabilities capabilities `json:"capabilities"`
}

// nameForm is the form of a driver's name: no element of it leads out of a directory.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$`)

// checkName returns why a driver on platform cannot have this name.
func checkName(platform pod.Platform, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("flexVolume.driver %q: want VENDOR/DRIVER of letters, digits, dots, dashes and underscores, each beginning with a letter or digit", name)
	}
	if vendor, _, _ := strings.Cut(name, "/"); strings.EqualFold(vendor, reservedVendor) {
		return fmt.Errorf("flexVolume.driver %q: want another vendor than %s, which has Kubernetes' own volumes", name, reservedVendor)
	}
	for element := range strings.SplitSeq(name, "/") {
		if err := paths.CheckElement(platform, element); err != nil {
			return fmt.Errorf("flexVolume.driver %q: %w", name, err)
		}
	}
	return nil
}

// reservedVendor is before the ~ in the names of other kinds' directories.
const reservedVendor = "kubernetes.io"

// escape is the name of a driver's directories, unescape the driver's name.
func escape(name string) string   { return strings.Replace(name, "/", "~", 1) }
func unescape(name string) string { return strings.Replace(name, "~", "/", 1) }

// drivers are the programs below one directory. One that is added, replaced or removed is noticed at its next use.
type drivers struct {
	dir      string
	platform pod.Platform
	run      command.Runner
	turns    *turns.Turns[string]

	mu    sync.Mutex
	known map[string]*driver // that have answered init
}

// driver is a program that has answered init.
type driver struct {
	name   string
	path   string
	script bool // cmd.exe of Windows reads its arguments
	run    command.Runner
	made   time.Time
	size   int64
	caps   capabilities

	mu    sync.Mutex
	lacks map[string]bool // calls that it does not have
}

// find returns the driver of that name after it has answered init.
func (ds *drivers) find(ctx context.Context, name string) (*driver, error) {
	d, err := ds.look(name)
	if err != nil {
		return nil, err
	}
	if have := ds.recall(name); have != nil && have.same(d) {
		return have, nil
	}
	err = ds.turns.Do(ctx, "driver "+name, func(ctx context.Context) error {
		if have := ds.recall(name); have != nil && have.same(d) {
			return nil
		}
		a, err := d.call(ctx, "init", nil)
		if err != nil {
			return err
		}
		d.caps = a.Capabilities
		ds.mu.Lock()
		defer ds.mu.Unlock()
		if ds.known == nil {
			ds.known = map[string]*driver{}
		}
		ds.known[name] = d
		klog.InfoS("Found a flexVolume driver", "driver", name, "program", d.path, "attach", d.caps.Attach, "fsGroup", d.caps.FSGroup)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("flexVolume driver %s: init: %w", name, err)
	}
	return ds.recall(name), nil
}

// recall returns the driver of that name that last answered init, or nil.
func (ds *drivers) recall(name string) *driver {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.known[name]
}

// look finds the program of a driver at upstream's path, DIR/VENDOR~DRIVER/DRIVER.
func (ds *drivers) look(name string) (*driver, error) {
	if err := checkName(ds.platform, name); err != nil {
		return nil, err
	}
	want := filepath.Join(ds.dir, escape(name), name[strings.LastIndex(name, "/")+1:])
	if ds.platform.OS == "windows" && strings.EqualFold(filepath.Ext(want), ".ps1") {
		return nil, fmt.Errorf("flexVolume driver %s: Windows cannot start %s; want an .exe or .cmd, which may start PowerShell", name, want)
	}
	path, err := command.Look(want)
	var fi fs.FileInfo
	if err == nil {
		fi, err = os.Stat(path)
	}
	if err != nil {
		return nil, fmt.Errorf("flexVolume driver %s is not installed on this node: want a program that may be run at %s: %w", name, want, err)
	}
	ext := strings.ToLower(filepath.Ext(path))
	script := ds.platform.OS == "windows" && (ext == ".cmd" || ext == ".bat")
	return &driver{name: name, path: path, script: script, run: ds.run, made: fi.ModTime(), size: fi.Size()}, nil
}

// same reports whether both are the same program.
func (d *driver) same(other *driver) bool {
	return d.path == other.path && d.made.Equal(other.made) && d.size == other.size
}

// options is the JSON object of a call in the form that the driver's program reads.
func (d *driver) options(o map[string]string) (string, error) {
	if d.script {
		return scriptJSON(o), nil
	}
	b, err := json.Marshal(o)
	return string(b), err
}

// call runs the driver. o is the call's JSON object, which follows args, or nil. Errors do not show its secrets.
// errNotSupported is the error of a driver that does not have the call.
func (d *driver) call(ctx context.Context, name string, o *callOptions, args ...string) (answer, error) {
	return d.callWith(ctx, name, args, o)
}

// callWith is call with more arguments behind the JSON object.
func (d *driver) callWith(ctx context.Context, name string, args []string, o *callOptions, behind ...string) (answer, error) {
	d.mu.Lock()
	lacks := d.lacks[name]
	d.mu.Unlock()
	if lacks {
		return answer{}, errNotSupported
	}
	argv := append([]string{name}, args...)
	for _, plain := range [][]string{argv, behind} {
		if i := unsafeForScript(plain); d.script && i >= 0 {
			return answer{}, fmt.Errorf("cannot hand %q to a script of Windows: want none of %s in it", plain[i], scriptSpecials)
		}
	}
	if o != nil {
		text, err := d.options(o.all)
		if err != nil {
			return answer{}, err
		}
		argv = append(argv, text)
	}
	stdout, err := d.run.Run(ctx, nil, d.path, append(argv, behind...)...)
	if ctx.Err() != nil {
		return answer{}, fmt.Errorf("%s command failed: %w", name, context.Cause(ctx))
	}
	a, err := read(name, stdout, err, o)
	if errors.Is(err, errNotSupported) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.lacks == nil {
			d.lacks = map[string]bool{}
		}
		d.lacks[name] = true
	}
	return a, err
}

// maxShown is how much of a driver's text an error shows, in bytes.
const maxShown = 1000

// read parses a driver's output and its end. o has the secrets to hide. It is pure.
func read(name string, stdout []byte, ran error, o *callOptions) (answer, error) {
	a := answer{Capabilities: defaults()}
	show := func(text string) string {
		text = strings.ToValidUTF8(o.hide(strings.TrimSpace(text)), "?")
		if len(text) > maxShown {
			text = strings.ToValidUTF8(text[:maxShown], "") + " ..."
		}
		return text
	}
	wrong := json.Unmarshal(stdout, &a)
	switch {
	case wrong != nil && ran != nil:
		return a, fmt.Errorf("%s command failed: %s", name, show(ending(ran, o)))
	case wrong != nil:
		return a, fmt.Errorf(`%s command failed: the driver printed %q; want JSON such as {"status": "Success"}`, name, show(string(stdout)))
	case a.Status == notSupported:
		return a, errNotSupported
	case a.Status != "Success":
		return a, fmt.Errorf("%s command failed, status: %s, reason: %s", name, show(a.Status), show(a.Message))
	case ran != nil:
		return a, fmt.Errorf("%s command failed: the driver printed Success, and ended with %s", name, show(ending(ran, o)))
	}
	return a, nil
}

// ending describes how a program ended. It leaves out the line that was run, which has the secrets, and what may be the rest of one where the
// program's output was cut.
func ending(ran error, o *callOptions) string {
	var exit *command.ExitError
	if errors.As(ran, &exit) {
		output, cut := strings.CutPrefix(exit.Output, "... ")
		if cut {
			output = output[min(len(output), o.longest()):]
		}
		if output == "" {
			return exit.State
		}
		return exit.State + ": " + output
	}
	if inner := errors.Unwrap(ran); inner != nil {
		return inner.Error()
	}
	return "an unknown error"
}
