package csi

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/links"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// checkNames refuses names that cannot be directories on Windows, such as con.
func checkNames(platform pod.Platform, d described) error {
	if platform.OS != "windows" {
		return nil
	}
	if err := paths.CheckElement(platform, d.spec); err != nil && !d.ephemeral {
		return fmt.Errorf("PersistentVolume %s: metadata.name: %w", d.spec, err)
	}
	if err := paths.CheckElement(platform, d.driver); err != nil {
		return fmt.Errorf("CSI driver %s: its name: %w", d.driver, err)
	}
	return nil
}

// confine says why a container must not get end, where the volume's links lead on Windows.
func confine(host volume.Host, d described, at place, end links.End) error {
	_, err := readData(at.nodeDir)
	staged := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	staging, err := links.Follow(host.Links.Read, at.staging)
	if err != nil {
		return err
	}
	return tree(host.Root).confine(d.driver, at, staging, end, staged)
}

// confine decides where the links of a published volume may lead: into its own directory, to what its driver has staged, below plugins/<driver>, to
// a share or to a volume. A driver that does not stage may also use directories outside of the agent's root. It is pure.
//
// Without this a link could show a pod the Secrets of others.
func (t tree) confine(driver string, at place, staging, end links.End, staged bool) error {
	own := t.join("plugins", driver)
	free := func(path string) bool { return !links.Below(path, string(t)) && !links.Below(string(t), path) }
	switch {
	case end.Outside != "", links.Below(end.Path, at.target):
		return nil
	case links.Below(end.Path, own) && !links.Below(t.join(pluginsDir), own):
		return nil
	case !staged && free(end.Path):
		return nil
	case staged && end.Within(staging) && (staging.Path == at.staging || links.Below(staging.Path, own) || free(staging.Path)):
		return nil
	case staged:
		return fmt.Errorf("it leads to %s; want a directory in what the driver has staged (%s), or below %s", end, staging, own)
	}
	return fmt.Errorf("it leads to %s; want a directory below %s, a share or a volume, and none with the kubelet's own files", end, own)
}
