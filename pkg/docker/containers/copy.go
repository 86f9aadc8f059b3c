package containers

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// systemDrive is the only drive of a container that the engine copies to and from (moby CheckSystemDriveAndRemoveDriveLetter).
const systemDrive = `C:\`

// copyIn copies files into a Windows container that has not started. Users with write access to their directories can replace them there.
func (a *Applier) copyIn(ctx context.Context, id string, files []pod.File) error {
	if len(files) == 0 {
		return nil
	}
	archive, err := archiveOf(files)
	if err != nil {
		return fmt.Errorf("cannot copy files into container %s: %w", engine.ShortID(id), err)
	}
	return a.engine.Call(ctx, "copy files into container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		return c.CopyToContainer(ctx, id, systemDrive, bytes.NewReader(archive), container.CopyToContainerOptions{})
	})
}

// archiveOf returns a tar archive of files below systemDrive. The engine creates missing directories.
func archiveOf(files []pod.File) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, f := range files {
		target, err := podspec.WindowsPath(f.ContainerPath)
		if err != nil {
			return nil, err
		}
		name, ok := podspec.WindowsWithin(target, systemDrive)
		if !ok {
			return nil, fmt.Errorf("%s is not on drive C, the only one that files are copied to", target)
		}
		header, data := &tar.Header{Name: strings.ReplaceAll(name, `\`, "/"), Mode: 0o644}, []byte(nil)
		if f.HostPath == "" {
			header.Typeflag, header.Name, header.Mode = tar.TypeDir, header.Name+"/", 0o755
		} else if data, err = os.ReadFile(f.HostPath); err != nil {
			return nil, err
		}
		header.Size = int64(len(data))
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(data); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return out.Bytes(), err
}

// copyOut reads the start of a file of an exited Windows container. It returns "" if the file is missing or unreadable.
func (ob *Observer) copyOut(ctx context.Context, id, name string) (text string) {
	name, err := podspec.WindowsPath(name)
	if err != nil || !strings.EqualFold(name[:min(len(name), len(systemDrive))], systemDrive) {
		return ""
	}
	err = ob.engine.Call(ctx, "read the termination message of container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		body, _, err := c.CopyFromContainer(ctx, id, name)
		if err != nil {
			return err
		}
		defer body.Close()
		archive := tar.NewReader(body)
		header, err := archive.Next()
		if err != nil || header.Typeflag != tar.TypeReg {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(archive, maxMessage))
		text = strings.ToValidUTF8(string(data), "\uFFFD")
		return err
	})
	if err != nil && !cerrdefs.IsNotFound(err) {
		klog.V(2).InfoS("Cannot read a termination message", "container", engine.ShortID(id), "err", err)
	}
	return text
}
