package doctor

import (
	"fmt"
	"slices"

	"github.com/winkube/winkube/pkg/docker"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
)

// slowDrivers are storage drivers of Linux with a known cost. Source: https://docs.docker.com/engine/storage/drivers/select-storage-driver/ and the
// page of each driver.
var slowDrivers = map[string]string{
	"vfs":            "it copies the whole image for each container",
	"devicemapper":   "it copies a block at each first write, slowly on a loop device, and Docker 25 and later do not have it",
	"fuse-overlayfs": "each access to a container's files goes through a process (FUSE)",
}

// speed is advice about settings of the engine that cost time. The log driver is none of them: the kubelet gives each container json-file and no
// health check.
func speed(e docker.Info) (out []netdoctor.Finding) {
	advice := func(fix, format string, args ...any) {
		out = append(out, netdoctor.Finding{What: fmt.Sprintf(format, args...), Fix: fix})
	}
	if cost := slowDrivers[e.StorageDriver]; cost != "" {
		advice(`drain the node, set "storage-driver": "overlay2" in /etc/docker/daemon.json and restart Docker: images are pulled again`,
			"Docker's storage driver %s is slow: %s", e.StorageDriver, cost)
	}
	if e.DefaultRuntime.Name == "runc" && slices.Contains(e.Runtimes, "crun") {
		advice(`try "default-runtime": "crun" in /etc/docker/daemon.json on one node; Docker 28 and later refuse crun 1.8.1`,
			"Docker has crun, and uses runc: crun starts containers in about half the time (100 containers in 1.69 s, not 3.34 s, says crun's README)")
	}
	return out
}
