package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// JoinerUsr gives the third host a /usr in which packages can be installed: what they write is in a directory of the host, and the machine's /usr is not
// changed. The host then looks to packages like one that systemd has booted. remove undoes it.
func (c *Cluster) JoinerUsr(ctx context.Context) (remove func(context.Context) error, err error) {
	top := c.Joiner.Dir("usr")
	if err := os.RemoveAll(top); err != nil {
		return nil, err
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			return nil, err
		}
	}
	// Debian's policy-rc.d of a container forbids services to start.
	up := fmt.Sprintf("mount -t overlay overlay -o lowerdir=/usr,upperdir=%[1]s/upper,workdir=%[1]s/work /usr && rm -f /usr/sbin/policy-rc.d && mkdir -p /run/systemd/system"+
		" /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers && touch /var/lib/dpkg/status", top)
	if _, err := c.Joiner.Exec(ctx, c.Joiner.shell(up)...); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { // its programs may still run
		_, err := c.Joiner.Exec(ctx, c.Joiner.shell("rmdir /run/systemd/system && rm -rf /var/lib/dpkg && umount -l /usr")...)
		return errors.Join(err, os.RemoveAll(top))
	}, nil
}

// JoinerUsrFiles lists what the third host's /usr has that the machine's has not, or the other way round.
func (c *Cluster) JoinerUsrFiles() ([]string, error) {
	upper := c.Joiner.Dir("usr", "upper")
	var names []string
	err := filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(path, "/sbin/policy-rc.d") {
			names = append(names, strings.TrimPrefix(path, upper))
		}
		return err
	})
	return names, err
}
