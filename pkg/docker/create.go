package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/errdefs/pkg/errhttp"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
)

// requestCreate asks for a new container; all that this agent makes are made here, so that seal forgets none. Today's client writes capabilities as CAP_NAME, which engines before 19.03 (API 1.40) refuse;
// those get the request without the client's help.
func (e *Engine) requestCreate(ctx context.Context, what string, creation Creation) (id string, err error) {
	creation.Config = seal(creation.Config)
	err = e.call(ctx, e.cfg.CallTimeout, what, func(ctx context.Context, c *client.Client) error {
		h := creation.HostConfig
		if versions.LessThan(c.ClientVersion(), "1.40") && len(h.CapAdd)+len(h.CapDrop) > 0 {
			id, err = e.postCreate(ctx, c, creation)
			return err
		}
		answer, err := c.ContainerCreate(ctx, creation.Config, h, nil, nil, creation.Name)
		id = answer.ID
		return err
	})
	return id, err
}

func (e *Engine) postCreate(ctx context.Context, c *client.Client, creation Creation) (string, error) {
	body, err := json.Marshal(container.CreateRequest{Config: creation.Config, HostConfig: creation.HostConfig})
	if err != nil {
		return "", err
	}
	var answer struct {
		ID string `json:"Id"`
	}
	err = e.ask(ctx, c, http.MethodPost, "/containers/create", url.Values{"name": {creation.Name}}, bytes.NewReader(body), &answer)
	return answer.ID, err
}

// get reads what the engine has at a path.
func (e *Engine) get(ctx context.Context, c *client.Client, path string, out any) error {
	return e.ask(ctx, c, http.MethodGet, path, nil, nil, out)
}

// ask makes a request in JSON without the client's ideas of what is in it. Errors are like the client's.
func (e *Engine) ask(ctx context.Context, c *client.Client, method, path string, query url.Values, body io.Reader, out any) error {
	host, err := client.ParseHostURL(e.host)
	if err != nil {
		return err
	}
	target := url.URL{Scheme: "http", Host: client.DummyHost, Path: "/v" + c.ClientVersion() + path, RawQuery: query.Encode()}
	if host.Scheme == "tcp" {
		target.Host, target.Path = host.Host, strings.TrimSuffix(host.Path, "/")+target.Path
	}
	if e.tls != nil {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.HTTPClient().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		var answer struct{ Message string }
		if err := json.Unmarshal(data, &answer); err != nil {
			answer.Message = strings.TrimSpace(string(data))
		}
		return fmt.Errorf("Error response from daemon: %s: %w", answer.Message, errhttp.ToNative(response.StatusCode)) //nolint:staticcheck // the client's own words
	}
	return json.Unmarshal(data, out)
}
