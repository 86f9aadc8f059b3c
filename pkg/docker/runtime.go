package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/versions"
	"k8s.io/apimachinery/pkg/util/version"
)

// RecursiveReadOnly says whether read-only mounts can be made recursively so, as far as the engine has told by now.
func (e *Engine) RecursiveReadOnly() bool { return e.recursive.Load() }

// HyperV says whether containers of Windows get virtual machines by the engine's own default, as far as it has told by now.
func (e *Engine) HyperV() bool { return e.hyperv.Load() }

// recursiveReadOnly knows that by versions: the engine takes the options from API 1.44 on, the kernel has mount_setattr from 5.12 on.
func recursiveReadOnly(info Info) bool {
	if info.OS != "linux" || versions.LessThan(info.APIVersion, "1.44") {
		return false
	}
	kernel, err := version.ParseGeneric(info.KernelVersion)
	return err == nil && kernel.AtLeast(version.MajorMinor(5, 12))
}

// checkRuntime says whether the engine has the runtime that the handler of a RuntimeClass names. On Windows the handler names an
// isolation, which package pod has checked.
func (e *Engine) checkRuntime(ctx context.Context, handler string) error {
	if handler == "" || e.cfg.Platform.OS == "windows" {
		return nil
	}
	info, err := e.Info(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(info.Runtimes, handler) {
		return nil
	}
	return fmt.Errorf("no runtime for RuntimeClass handler %q is configured: the engine has %s; add it to runtimes in the engine's daemon.json",
		handler, strings.Join(info.Runtimes, ", "))
}
