package dockertest

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
)

// config returns the image's container configuration.
func (img *Image) config() *container.Config {
	out := container.Config{}
	if img.Config != nil {
		out = *img.Config
	}
	out.User = cmp.Or(img.User, out.User)
	if len(img.Entrypoint) > 0 {
		out.Entrypoint = img.Entrypoint
	}
	if len(img.Cmd) > 0 {
		out.Cmd = img.Cmd
	}
	if len(img.Env) > 0 {
		out.Env = img.Env
	}
	return &out
}

// merge fills in fields that a request leaves out from the image (moby daemon/commit.go merge, daemon/create.go). It has not changed since 1.12, except
// variables of Windows, which were case-sensitive before 17.06, and StartInterval, new in 25.0. The engine takes no other fields from an image.
func (o *Options) merge(c, image *container.Config) (refusal string) {
	c.User = cmp.Or(c.User, image.User)
	c.WorkingDir = cmp.Or(c.WorkingDir, image.WorkingDir)
	c.StopSignal = cmp.Or(c.StopSignal, image.StopSignal)
	c.ExposedPorts = union(c.ExposedPorts, image.ExposedPorts)
	c.Volumes = union(c.Volumes, image.Volumes)
	labels := maps.Clone(image.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	c.Labels = labels
	for _, line := range image.Env {
		if !slices.ContainsFunc(c.Env, func(own string) bool { return o.sameVariable(own, line) }) {
			c.Env = append(c.Env, line)
		}
	}
	if len(c.Entrypoint) == 0 {
		if len(c.Cmd) == 0 {
			c.Cmd = image.Cmd
		}
		if c.Entrypoint == nil {
			c.Entrypoint = image.Entrypoint
		}
	}
	mergeHealth(c, image.Healthcheck)
	c.ArgsEscaped = c.ArgsEscaped || o.windows() && image.ArgsEscaped //nolint:staticcheck // engines still have it
	if len(c.Entrypoint) == 1 && c.Entrypoint[0] == "" {
		c.Entrypoint = nil
	}
	if len(c.Entrypoint)+len(c.Cmd) == 0 {
		return "no command specified"
	}
	return ""
}

func union[K comparable](a, b map[K]struct{}) map[K]struct{} {
	if len(a)+len(b) == 0 {
		return a
	}
	out := map[K]struct{}{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

func (o *Options) sameVariable(a, b string) bool {
	a, _, _ = strings.Cut(a, "=")
	b, _, _ = strings.Cut(b, "=")
	return a == b || o.windows() && strings.EqualFold(a, b)
}

// mergeHealth fills in the fields of a health check individually.
func mergeHealth(c *container.Config, image *container.HealthConfig) {
	if image == nil {
		return
	}
	if c.Healthcheck == nil {
		c.Healthcheck = image
		return
	}
	h := *c.Healthcheck
	if len(h.Test) == 0 {
		h.Test = image.Test
	}
	h.Interval, h.Timeout = cmp.Or(h.Interval, image.Interval), cmp.Or(h.Timeout, image.Timeout)
	h.StartPeriod, h.StartInterval = cmp.Or(h.StartPeriod, image.StartPeriod), cmp.Or(h.StartInterval, image.StartInterval)
	h.Retries = cmp.Or(h.Retries, image.Retries)
	c.Healthcheck = &h
}

// checksHealth says whether the engine runs the container's health check now (moby daemon/health.go getProbe).
func (b *box) checksHealth() bool {
	h := b.config.Healthcheck
	return b.running && h != nil && len(h.Test) > 0 && (h.Test[0] == "CMD" || h.Test[0] == "CMD-SHELL")
}

// mount records the mounts of a new container: those requested, and an anonymous volume for each path of Config.Volumes that is not already a mount
// (moby daemon/create_unix.go, create_windows.go).
func (e *Engine) mount(b *box) {
	add := func(source, target string, bind bool) {
		point := container.MountPoint{Type: mount.TypeBind, Source: source, Destination: target, RW: true}
		if !bind {
			if source == "" {
				source = e.nextID()
				e.volumes[source] = true
			} else if _, there := e.volumes[source]; !there {
				e.volumes[source] = false
			}
			point = container.MountPoint{Type: mount.TypeVolume, Name: source, Source: e.opts.volumePath(source), Destination: target, Driver: "local", RW: true}
		}
		b.mounts = append(b.mounts, point)
	}
	for _, text := range b.host.Binds {
		if e.opts.windows() {
			if m := windowsBind.FindStringSubmatch(text); m != nil {
				add(m[1], m[2], true)
			}
			continue
		}
		parts := strings.Split(text, ":")
		add(parts[0], path.Clean(parts[1]), strings.HasPrefix(parts[0], "/"))
	}
	for _, m := range b.host.Mounts {
		add(m.Source, m.Target, m.Type == mount.TypeBind)
	}
	for _, target := range slices.Sorted(maps.Keys(b.config.Volumes)) {
		if e.opts.windows() {
			target = strings.TrimRight(strings.ReplaceAll(target, "/", `\`), `\`)
		} else {
			target = path.Clean(target)
		}
		if !slices.ContainsFunc(b.mounts, func(m container.MountPoint) bool {
			return m.Destination == target || e.opts.windows() && strings.EqualFold(m.Destination, target)
		}) {
			add("", target, false)
		}
	}
}

func (o *Options) volumePath(name string) string {
	if o.windows() {
		return `C:\ProgramData\docker\volumes\` + name + `\_data`
	}
	return "/var/lib/docker/volumes/" + name + "/_data"
}

// dropVolumes removes the anonymous volumes of a container.
func (e *Engine) dropVolumes(b *box) {
	for _, m := range b.mounts {
		if e.volumes[m.Name] {
			delete(e.volumes, m.Name)
		}
	}
}

// Volumes lists the names of all volumes, sorted. Anonymous ones have 64 hex digits.
func (e *Engine) Volumes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.volumes))
}
