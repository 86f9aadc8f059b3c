package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// User agents of this upstream version. Servers use them to distinguish probes from users.
const (
	probeAgent = "kube-probe/1.36"
	hookAgent  = "kube-lifecycle/1.36"
)

// HTTP runs an httpGet probe: status 200 to 399 is success. It follows redirects on the same host. A redirect to another host is not
// followed and gives a Warning.
func (p *Prober) HTTP(ctx context.Context, action *v1.HTTPGetAction, target Target) (Result, error) {
	req, err := request(ctx, action, target, probeAgent)
	if err != nil {
		return Result{}, err
	}
	resp, err := p.client().Do(req)
	if err != nil {
		return Result{Detail: err.Error()}, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	switch {
	case err != nil:
		return Result{}, fmt.Errorf("cannot read the response: %w", err)
	case resp.StatusCode < 200 || resp.StatusCode > 399:
		return Result{Detail: fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}, nil
	case resp.StatusCode >= 300:
		return Result{Warning, "Probe terminated redirects, Response body: " + string(body)}, nil // upstream's words, which users search for
	}
	return Result{Success, string(body)}, nil
}

// Hook sends the request of an httpGet lifecycle hook. Any response counts as success, even a redirect to another host, which is not
// followed. fellBack means that the hook has scheme HTTPS but the server speaks HTTP, so that it was repeated with HTTP (Event
// LifecycleHTTPFallback).
func (p *Prober) Hook(ctx context.Context, action *v1.HTTPGetAction, target Target) (fellBack bool, err error) {
	req, err := request(ctx, action, target, hookAgent)
	if err != nil {
		return false, err
	}
	err = p.send(req)
	// net/http has no type for this error.
	if err == nil || req.URL.Scheme != "https" || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return false, err
	}
	req = req.Clone(ctx)
	req.URL.Scheme = "http"
	req.Header.Del("Authorization") // intended for an encrypted connection only
	err = p.send(req)
	return err == nil, err
}

func (p *Prober) send(req *http.Request) error {
	resp, err := p.client().Do(req)
	if err != nil && len(err.Error()) > maxOutput { // it may include a line that the container sent
		return errors.New(clip(err.Error()))
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxOutput))
	return nil
}

func (p *Prober) client() *http.Client {
	return &http.Client{Transport: p.transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if req.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
}

// request builds the GET request of an action. A Host header sets the request's host. An empty Accept header removes the default one.
func request(ctx context.Context, action *v1.HTTPGetAction, target Target, agent string) (*http.Request, error) {
	address, err := target.address(action.Host, action.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(action.Path)
	if err != nil { // accepted by the API server: send it escaped
		u = &url.URL{Path: action.Path}
	}
	u.Scheme, u.Host = "http", address
	if action.Scheme != "" {
		u.Scheme = strings.ToLower(string(action.Scheme))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range action.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, set := req.Header["User-Agent"]; !set {
		req.Header.Set("User-Agent", agent)
	}
	if accept, set := req.Header["Accept"]; !set {
		req.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}
