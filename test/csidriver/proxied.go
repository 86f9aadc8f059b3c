package csidriver

import (
	"context"
	"errors"
	"os"
	"strings"

	filesystem "github.com/kubernetes-csi/csi-proxy/client/api/filesystem/v1"
	smb "github.com/kubernetes-csi/csi-proxy/client/api/smb/v1"

	"github.com/winkube/winkube/pkg/volume/mount"
)

// proxied makes links as drivers on Windows do: it has no rights on the host, and asks csi-proxy. A volume is a share of one server, which is mapped
// when it is staged. Source: kubernetes-csi/csi-driver-smb pkg/mounter/safe_mounter_windows.go.
type proxied struct {
	mount.Linked // what it does not use
	files        filesystem.FilesystemClient
	shares       smb.SmbClient
}

// shareServer begins the shares of volumes.
const shareServer = `\\nas.winkube.test\`

// newProxied connects to csi-proxy's pipes at the first call.
func newProxied() (*proxied, error) {
	files, err := dialProxy("filesystem")
	if err != nil {
		return nil, err
	}
	shares, err := dialProxy("smb")
	return &proxied{files: filesystem.NewFilesystemClient(files), shares: smb.NewSmbClient(shares)}, err
}

// pipe is where csi-proxy serves version 1 of a group of its API.
func pipe(group string) string { return `\\.\pipe\csi-proxy-` + group + "-v1" }

// stage maps the share of a volume and makes a link to it, in the place of what is there.
func (p *proxied) stage(ctx context.Context, id, target string) error {
	if err := p.remove(ctx, target); err != nil {
		return err
	}
	_, err := p.shares.NewSmbGlobalMapping(ctx, &smb.NewSmbGlobalMappingRequest{RemotePath: shareServer + id, LocalPath: target, Username: `nas\user`, Password: "secret"})
	return err
}

// publish makes a link to what is staged.
func (p *proxied) publish(ctx context.Context, staged, target string) error {
	if linked, err := p.IsMount(target); err != nil || linked {
		return err
	}
	_, err := p.files.CreateSymlink(ctx, &filesystem.CreateSymlinkRequest{SourcePath: staged, TargetPath: target})
	return err
}

// unstage removes the link and the mapping.
func (p *proxied) unstage(ctx context.Context, id, target string) error {
	err := p.remove(ctx, target)
	_, wrong := p.shares.RemoveSmbGlobalMapping(ctx, &smb.RemoveSmbGlobalMappingRequest{RemotePath: shareServer + id})
	if wrong != nil && strings.Contains(wrong.Error(), "no mapping") { // the host has restarted
		wrong = nil
	}
	return errors.Join(err, wrong)
}

// remove removes what is at a path.
func (p *proxied) remove(ctx context.Context, path string) error {
	there, err := p.files.PathExists(ctx, &filesystem.PathExistsRequest{Path: path})
	if err != nil || !there.GetExists() {
		return err
	}
	_, err = p.files.Rmdir(ctx, &filesystem.RmdirRequest{Path: path, Force: true})
	return err
}

// IsMount implements mount.Mounter.
func (p *proxied) IsMount(path string) (bool, error) {
	is, err := p.files.IsSymlink(context.Background(), &filesystem.IsSymlinkRequest{Path: path})
	return is.GetIsSymlink(), err
}

// Unmount implements mount.Mounter.
func (p *proxied) Unmount(path string) error { return p.remove(context.Background(), path) }

// Bind implements mount.Mounter; stage and publish are in its place.
func (*proxied) Bind(*os.File, string) error { return errors.ErrUnsupported }
