package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

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
