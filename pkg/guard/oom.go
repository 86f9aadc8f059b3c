package guard

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/host"
)

// WatchOOM reports each process that the kernel kills because the machine is out of memory, until ctx ends. If the
// kernel cannot be watched, it logs that and returns.
func WatchOOM(ctx context.Context, events Events) {
	err := host.WatchOOM(ctx, func(v host.Victim) {
		klog.InfoS("The machine is out of memory: the kernel killed a process", "name", v.Name, "pid", v.PID)
		events.NodeEvent(v1.EventTypeWarning, "SystemOOM", fmt.Sprintf("the machine is out of memory: the kernel ended process %s (pid %d)", v.Name, v.PID))
	})
	if err != nil {
		klog.InfoS("Cannot watch the kernel log; there will be no Events for processes that it kills when the machine is out of memory", "err", err)
	}
}
