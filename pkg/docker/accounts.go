package docker

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

const (
	maxAccounts     = 1 << 20 // bytes of one of the files that are read
	maxAccountLinks = 8       // symbolic links followed to it
	keptAccounts    = 200     // images whose accounts are remembered
)

// accountCache remembers the accounts of images by id, which names their content. One caller at a time reads an image.
type accountCache struct {
	mu     sync.Mutex
	images map[string]*accountEntry
}

type accountEntry struct {
	sync.Mutex
	accounts *accounts
}

func (c *accountCache) entry(id string) *accountEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.images == nil || len(c.images) >= keptAccounts {
		c.images = map[string]*accountEntry{}
	}
	if c.images[id] == nil {
		c.images[id] = &accountEntry{}
	}
	return c.images[id]
}

// accountsOf reads the users and groups of a present image, by a container that never starts. An image without the files has none.
func (e *Engine) accountsOf(ctx context.Context, image string) (*accounts, error) {
	entry := e.accounts.entry(image)
	entry.Lock()
	defer entry.Unlock()
	if entry.accounts != nil {
		return entry.accounts, nil
	}
	holder, err := e.hold(ctx, identity.HoldAccounts, image)
	if err != nil {
		return nil, err
	}
	// Also when the pod is going: the container would stay.
	defer func() {
		if err := e.remove(context.WithoutCancel(ctx), holder); err != nil {
			klog.ErrorS(err, "Cannot remove the container by which an image's users were read", "container", engine.ShortID(holder))
		}
	}()
	passwd, err := e.readFile(ctx, holder, "/etc/passwd")
	if err != nil {
		return nil, err
	}
	groups, err := e.readFile(ctx, holder, "/etc/group")
	if err != nil {
		return nil, err
	}
	entry.accounts = parseAccounts(passwd, groups)
	return entry.accounts, nil
}

// accountsFor is accountsOf for a container that is about to be made. Where they only serve the status, a failure is no reason not to
// start it: they are nil then.
func (e *Engine) accountsFor(ctx context.Context, p *v1.Pod, c *v1.Container, image pod.Image) (*accounts, error) {
	if e.cfg.Platform.OS == "windows" {
		return nil, nil
	}
	known, err := e.accountsOf(ctx, image.ID)
	if err != nil && ctx.Err() == nil && !needsAccounts(p, c, image.User) {
		if cerrdefs.IsNotFound(err) { // the create that follows tells of it
			return nil, nil
		}
		klog.ErrorS(err, "Cannot tell as whom a container runs", "pod", klog.KObj(p), "container", c.Name)
		return nil, nil
	}
	return known, err
}

// readFile reads a file of a container, which need not run. One that is not there is empty.
func (e *Engine) readFile(ctx context.Context, id, name string) (text string, err error) {
	what := fmt.Sprintf("read %s of container %s", name, engine.ShortID(id))
	err = e.Call(ctx, what, func(ctx context.Context, c *client.Client) error {
		for range maxAccountLinks {
			data, link, err := copyFile(ctx, c, id, name)
			if cerrdefs.IsNotFound(err) {
				return nil
			}
			if err != nil || link == "" {
				text = data
				return err
			}
			if !path.IsAbs(link) {
				link = path.Join(path.Dir(name), link)
			}
			name = link
		}
		return fmt.Errorf("more than %d links lead to it", maxAccountLinks)
	})
	return text, err
}

// copyFile returns the content of a regular file, or where a symbolic link leads.
func copyFile(ctx context.Context, c *client.Client, id, name string) (data, link string, err error) {
	body, _, err := c.CopyFromContainer(ctx, id, name)
	if err != nil {
		return "", "", err
	}
	defer body.Close()
	archive := tar.NewReader(body)
	header, err := archive.Next()
	if err != nil {
		return "", "", err
	}
	switch header.Typeflag {
	case tar.TypeSymlink:
		return "", header.Linkname, nil
	case tar.TypeReg:
		content, err := io.ReadAll(io.LimitReader(archive, maxAccounts))
		return string(content), "", err
	}
	return "", "", nil // a directory, say: no accounts
}
