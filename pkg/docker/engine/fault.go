package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/docker/docker/api"

	"github.com/winkube/winkube/pkg/daemon"
)

// Fault is something about an engine that a person has to repair. Reason is that of the Node's Event.
type Fault struct{ Reason, What, Fix string }

// Reasons of engines that the kubelet cannot use.
const (
	TooOld = "EngineTooOld"
	TooNew = "EngineTooNew"
)

// Faults returns what is wrong with an engine that answered info or err. driver is the cgroup driver in the kubelet's configuration; "": none. It is
// pure.
func Faults(info Info, err error, driver string) (out []Fault) {
	var new tooNew
	if errors.As(err, &new) {
		return []Fault{{TooNew, new.what(), "install an older Docker, or a newer kubelet"}}
	}
	if err != nil {
		return nil // it may be away for a moment
	}
	if info.tooOld() {
		out = append(out, Fault{TooOld, fmt.Sprintf("Docker %s is older than %s", info.Version, daemon.OldestEngine), "install a later Docker Engine"})
	}
	if info.DefaultRuntime.Missing {
		out = append(out, Fault{
			"RuntimeMissing", fmt.Sprintf("Docker cannot run its default runtime %s: no container starts", info.DefaultRuntime.Name),
			"install " + info.DefaultRuntime.Name + ", or correct default-runtime and runtimes in /etc/docker/daemon.json; docker info shows its version",
		})
	}
	if driver != "" && info.CgroupDriver != "" && driver != info.CgroupDriver {
		out = append(out, Fault{
			"CgroupDriverDiffers", fmt.Sprintf("Docker's cgroup driver is %s, and the kubelet's configuration has cgroupDriver: %s. The kubelet uses Docker's", info.CgroupDriver, driver),
			fmt.Sprintf(`set cgroupDriver: %s; or drain the node, set "exec-opts": ["native.cgroupdriver=%s"] in /etc/docker/daemon.json and restart Docker`, info.CgroupDriver, driver),
		})
	}
	return out
}

// tooOld reports whether the engine is older than the oldest supported one. Builds of developers may have versions that only look old.
func (i Info) tooOld() bool { return i.Release() <= 17 && older(i.Version, daemon.OldestEngine) }

// older compares versions like 20.10.24 by their numbers; an unparsable one is not older.
func older(version, than string) bool {
	a, b := strings.FieldsFunc(version, notDigit), strings.FieldsFunc(than, notDigit)
	for i := range min(len(a), len(b)) {
		x, errX := strconv.Atoi(a[i])
		y, errY := strconv.Atoi(b[i])
		if errX != nil || errY != nil || x != y {
			return errX == nil && errY == nil && x < y
		}
	}
	return false
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// tooNew is the error of each call to an engine that accepts no version of the API that this client speaks.
type tooNew struct {
	accepts string // the oldest version that it accepts
	cause   error
}

func (t tooNew) what() string {
	return fmt.Sprintf("this Docker is too new: it accepts no API version before %s, and this kubelet supports %s to %s", t.accepts, api.MinSupportedAPIVersion, api.DefaultVersion)
}

// Error says what to do, too.
func (t tooNew) Error() string {
	return t.what() + "; install an older Docker or a newer kubelet: " + t.cause.Error()
}

func (t tooNew) Unwrap() error { return t.cause }
