package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errhttp"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/winkube/winkube/pkg/docker/identity"
)

// Create creates a container and returns its id; what is for the error, as in Call. All containers of this agent are created here, so that
// identity.Seal misses none. Today's client writes capabilities as CAP_NAME, which engines before 19.03 (API 1.40) refuse; for those, Create bypasses
// the client.
func (e *Client) Create(ctx context.Context, what, name string, config *container.Config, h *container.HostConfig) (id string, err error) {
	config = identity.Seal(config)
	err = e.Call(ctx, what, func(ctx context.Context, c *client.Client) error {
		if versions.LessThan(c.ClientVersion(), "1.40") && len(h.CapAdd)+len(h.CapDrop) > 0 {
			id, err = postCreate(ctx, e, c, name, container.CreateRequest{Config: config, HostConfig: h})
			return err
		}
		answer, err := c.ContainerCreate(ctx, config, h, nil, nil, name)
		id = answer.ID
		return err
	})
	return id, err
}

func postCreate(ctx context.Context, e *Client, c *client.Client, name string, request container.CreateRequest) (string, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	var answer struct {
		ID string `json:"Id"`
	}
	err = ask(ctx, e, c, http.MethodPost, "/containers/create", url.Values{"name": {name}}, bytes.NewReader(body), &answer)
	return answer.ID, err
}

// Remove deletes a container and its anonymous volumes. A container that is gone or being removed is not an error; gone says that it no longer
// exists. Remove never ends a running container (see StillRuns): a request of an agent that died may have just started it.
func (e *Client) Remove(ctx context.Context, id string) (gone bool, err error) {
	err = e.Call(ctx, "remove container "+ShortID(id), func(ctx context.Context, c *client.Client) error {
		return c.ContainerRemove(ctx, id, container.RemoveOptions{RemoveVolumes: true})
	})
	if err == nil {
		return true, nil
	}
	if cerrdefs.IsNotFound(err) || beingRemoved(err) {
		return false, nil
	}
	return false, err
}

// Get reads a path of the API that the client does not support fully.
func (e *Client) Get(ctx context.Context, c *client.Client, path string, out any) error {
	return ask(ctx, e, c, http.MethodGet, path, nil, nil, out)
}

// ask makes a JSON request that bypasses the client's types. Errors are like the client's.
func ask(ctx context.Context, e *Client, c *client.Client, method, path string, query url.Values, body io.Reader, out any) error {
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
