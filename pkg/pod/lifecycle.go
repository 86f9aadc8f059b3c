package pod

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
)

// hookOutput is how many bytes of a hook's output its error repeats.
const hookOutput = 10 * 1024

// hookRun runs lifecycle hooks in one container.
type hookRun struct {
	pod       *v1.Pod
	container *v1.Container
	id        string
	ips       []netip.Addr
	parts     *Parts
}

// run runs one hook to its end, or the end of ctx. The error is what users see of a failed postStart hook.
func (h hookRun) run(ctx context.Context, handler *v1.LifecycleHandler) error {
	name := fmt.Sprintf("for Container %q in Pod %q failed", h.container.Name, podLabel(h.pod))
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
		timer := time.NewTimer(time.Duration(handler.Sleep.Seconds) * time.Second)
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

// hookClient trusts any certificate, as upstream does for hooks, and keeps no connections.
var hookClient = &http.Client{Transport: &http.Transport{
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the container's own, self-signed as a rule
	DisableKeepAlives: true,
	Proxy:             nil,
}}

// get sends the request of an httpGet hook. Whatever is answered will do; only no answer is a failure.
func (h hookRun) get(ctx context.Context, action *v1.HTTPGetAction) error {
	host := action.Host
	if host == "" {
		if len(h.ips) == 0 {
			return errors.New("the pod has no address")
		}
		host = h.ips[0].String()
	}
	port, err := containerPort(action.Port, h.container)
	if err != nil {
		return err
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		return fmt.Errorf("cannot parse path %q of the hook: %w", action.Path, err)
	}
	target.Scheme, target.Host = strings.ToLower(string(action.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	header := http.Header{"User-Agent": {"kube-lifecycle/1.36"}, "Accept": {"*/*"}}
	for _, pair := range action.HTTPHeaders {
		header.Add(pair.Name, pair.Value)
	}
	err = sendHook(ctx, *target, header)
	if err != nil && target.Scheme == "https" && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		klog.V(1).InfoS("HTTPS hook got an HTTP response, trying HTTP", "pod", klog.KObj(h.pod), "host", target.Host)
		target.Scheme = "http"
		header.Del("Authorization")
		if err = sendHook(ctx, *target, header); err == nil {
			h.parts.Events.Eventf(podRef(h.pod), v1.EventTypeWarning, "LifecycleHTTPFallback",
				"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", target.Host)
		}
	}
	return err
}

func sendHook(ctx context.Context, target url.URL, header http.Header) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return fmt.Errorf("cannot make the hook's request: %w", err)
	}
	request.Header = header.Clone()
	if host := header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := hookClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, hookOutput))
	return err
}

// containerPort is the number of a port that may be given by its name in the container's ports.
func containerPort(port intstr.IntOrString, container *v1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range container.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("port %q of container %s is neither a number from 1 to 65535 nor the name of one of its ports", port.String(), container.Name)
	}
	return number, nil
}
