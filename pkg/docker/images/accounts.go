package images

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/accounts"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
)

const (
	maxAccounts     = 1 << 20 // bytes of each file
	maxAccountLinks = 8       // symbolic links followed per file
	keptAccounts    = 200     // cached images
)

// accountCache caches the accounts of images by id, which identifies their content. Only one caller at a time reads an image.
type accountCache struct {
	mu     sync.Mutex
	images map[string]*accountEntry
}

type accountEntry struct {
	sync.Mutex
	accounts *accounts.Accounts
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

// Accounts reads the users and groups of a present image, using a container that never starts. An image without the files has none.
func (s *Store) Accounts(ctx context.Context, image string) (*accounts.Accounts, error) {
	entry := s.accounts.entry(image)
	entry.Lock()
	defer entry.Unlock()
	if entry.accounts != nil {
		return entry.accounts, nil
	}
	holder, err := s.hold(ctx, identity.HoldAccounts, image)
	if err != nil {
		return nil, err
	}
	// Also if ctx has ended: otherwise the container would remain.
	defer func() {
		if err := s.remove(context.WithoutCancel(ctx), holder); err != nil {
			klog.ErrorS(err, "Cannot remove the temporary container for reading an image's users", "container", engine.ShortID(holder))
		}
	}()
	passwd, err := s.readFile(ctx, holder, "/etc/passwd")
	if err != nil {
		return nil, err
	}
	groups, err := s.readFile(ctx, holder, "/etc/group")
	if err != nil {
		return nil, err
	}
	entry.accounts = accounts.Parse(passwd, groups)
	return entry.accounts, nil
}

// readFile reads a file of a container, running or not. A missing file is empty.
func (s *Store) readFile(ctx context.Context, id, name string) (text string, err error) {
	what := fmt.Sprintf("read %s of container %s", name, engine.ShortID(id))
	err = s.engine.Call(ctx, what, func(ctx context.Context, c *client.Client) error {
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
		return fmt.Errorf("it is behind more than %d links", maxAccountLinks)
	})
	return text, err
}

// copyFile returns the content of a regular file, or the target of a symbolic link.
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
	return "", "", nil // a directory, for example: no accounts
}
