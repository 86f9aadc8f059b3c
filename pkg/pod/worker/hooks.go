package worker

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// hookOutput is how many bytes of a hook's output its error includes.
const hookOutput = 10 * 1024

// hookRun runs lifecycle hooks in one container.
type hookRun struct {
	pod       *v1.Pod
	container *v1.Container
	id        string
	ips       []netip.Addr
	parts     *Parts
}

// run runs one hook until it or ctx ends. Users see the error of a failed postStart hook.
func (h hookRun) run(ctx context.Context, handler *v1.LifecycleHandler) error {
	name := fmt.Sprintf("for Container %q in Pod %q failed", h.container.Name, podspec.Label(h.pod))
	switch {
	case handler.Exec != nil:
		code, output, err := h.parts.Executor.ExecSync(ctx, h.id, handler.Exec.Command, hookOutput)
		if err == nil && code != 0 {
			err = fmt.Errorf("command exited with code %d", code)
		}
		if err != nil {
			return fmt.Errorf("exec lifecycle hook (%v) %s - error: %w, message: %q", handler.Exec.Command, name, err, output)
		}
	case handler.HTTPGet != nil:
		if err := h.get(ctx, handler.HTTPGet); err != nil {
			return fmt.Errorf("HTTP lifecycle hook (%s) %s - error: %w", handler.HTTPGet.Path, name, err)
		}
	case handler.Sleep != nil:
		timer := time.NewTimer(podspec.Seconds(handler.Sleep.Seconds))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("sleep lifecycle hook (%d) %s - error: %w", handler.Sleep.Seconds, name, ctx.Err())
		}
	default:
		return fmt.Errorf("cannot run hook of container %s: want one of exec, httpGet, sleep", h.container.Name)
	}
	return nil
}

// get sends the request of an httpGet hook. Any response counts as success; only no response is a failure.
func (h hookRun) get(ctx context.Context, action *v1.HTTPGetAction) error {
	target := pod.ProbeTarget{ContainerID: h.id, Ports: h.container.Ports, Pod: h.pod, Container: h.container.Name}
	if len(h.ips) > 0 {
		target.PodIP = h.ips[0]
	}
	fellBack, err := h.parts.Prober.Hook(ctx, action, target)
	if fellBack && err == nil {
		klog.V(1).InfoS("HTTPS hook got an HTTP response; the retry with HTTP succeeded", "pod", klog.KObj(h.pod), "container", h.container.Name)
		h.parts.Events.Eventf(podspec.Reference(h.pod), v1.EventTypeWarning, "LifecycleHTTPFallback",
			"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", hookHost(action, target))
	}
	return err
}

// hookHost is the destination of a hook's request, for messages.
func hookHost(action *v1.HTTPGetAction, target pod.ProbeTarget) string {
	host := action.Host
	if host == "" {
		host = target.PodIP.String()
	}
	return net.JoinHostPort(host, action.Port.String())
}
