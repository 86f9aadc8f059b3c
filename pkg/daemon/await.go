package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// ErrShutdown is the cause (context.Cause) when the context of Run ends because the host shuts down and waits for us. There is time to stop pods
// gracefully: as long as the Windows service was installed with, or --shutdown-grace-period where systemd-logind waits.
var ErrShutdown = errors.New("the host shuts down")

// LogindConfig is the file that raises logind's delay. Its name sorts after 99-kubelet.conf, which upstream's kubelet writes: of two files in
// logind.conf.d the later one decides.
const LogindConfig = "/etc/systemd/logind.conf.d/99-winkube.conf"

// needed are the services without which there are no containers and no network. We wait for them ourselves instead of declaring dependencies: the
// service manager would stop us whenever one of them is stopped, as with each update of Docker, and never restart us.
var needed = []string{"docker", "hns"}

// awaitServices returns when all existing services of names run, or after patience. state returns "" for a missing service; it is called again at
// each tick.
func awaitServices(ctx context.Context, names []string, state func(string) (string, error), tick <-chan time.Time, patience <-chan time.Time) {
	said := ""
	for {
		waits := pending(names, state)
		if len(waits) == 0 {
			return
		}
		if now := strings.Join(waits, ", "); now != said {
			klog.InfoS("Waiting for services", "services", now)
			said = now
		}
		select {
		case <-tick:
		case <-patience:
			klog.InfoS("Starting although services do not run", "services", said)
			return
		case <-ctx.Done():
			return
		}
	}
}

// pending returns the services worth waiting for.
func pending(names []string, state func(string) (string, error)) (waits []string) {
	for _, name := range names {
		switch now, err := state(name); {
		case err != nil:
			klog.ErrorS(err, "Cannot query a service; not waiting for it", "service", name)
		case now != "" && now != stateRunning:
			waits = append(waits, fmt.Sprintf("%s (%s)", name, now))
		}
	}
	return waits
}

// priorityClasses are the values of upstream's --windows-priorityclass, with Windows' constants (SetPriorityClass).
var priorityClasses = map[string]uint32{
	"IDLE_PRIORITY_CLASS": 0x40, "BELOW_NORMAL_PRIORITY_CLASS": 0x4000, "NORMAL_PRIORITY_CLASS": 0x20,
	"ABOVE_NORMAL_PRIORITY_CLASS": 0x8000, "HIGH_PRIORITY_CLASS": 0x80, "REALTIME_PRIORITY_CLASS": 0x100,
}

// priorityClass parses the flag's value.
func priorityClass(name string) (uint32, error) {
	if class, ok := priorityClasses[name]; ok {
		return class, nil
	}
	var names []string
	for known := range priorityClasses {
		names = append(names, known)
	}
	slices.Sort(names)
	return 0, fmt.Errorf("--windows-priorityclass=%s: want one of %s", name, strings.Join(names, ", "))
}
