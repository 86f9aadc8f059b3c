package nodejoin

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// refusal is something wrong with a host, its cluster or the arguments.
type refusal struct {
	system string // "": windows
	change func(*bare)
	want   string      // in the error
	repair func(*bare) // what is wrong beside arguments, parts, engine and rights
}

// check wants an error of one line, with nothing changed, and that a correct join works afterwards.
func (c refusal) check(t *testing.T) {
	t.Parallel()
	system := "windows"
	if c.system != "" {
		system = c.system
	}
	b := newBare(t, system)
	cfg, parts, engine := b.cfg, b.parts, b.engine
	c.change(b)
	before := b.tree()
	err := b.join()
	if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "fedcba9876543210") {
		t.Errorf("%v, want %q", err, c.want)
	}
	if after := b.tree(); after != before || len(b.services) != 0 {
		t.Errorf("it left %v and\n%s", b.services, after)
	}
	b.cfg, b.parts, b.engine, b.down, b.May = cfg, parts, engine, nil, nil
	if c.repair != nil {
		c.repair(b)
	}
	if err := b.join(); err != nil || len(b.services) != 2 || b.starts["kubelet"] != 1 || b.starts["proxy"] != 1 {
		t.Errorf("a correct join afterwards: %v, services %v, starts %v\n%s", err, b.services, b.starts, b.said.String())
	}
}

// TestRefusedEngines: an error names the engine's version and the versions that would be right.
func TestRefusedEngines(t *testing.T) {
	version := func(v string) func(*bare) { return func(b *bare) { b.engine.Version = v } }
	on2016 := func(b *bare) { b.parts.Facts.WindowsBuild = 14393 }
	for name, c := range map[string]refusal{
		"stopped":          {change: func(b *bare) { b.down = errors.New("cannot find the file \\\\.\\pipe\\docker_engine") }, want: "Docker does not answer: cannot find the file"},
		"of Linux":         {change: func(b *bare) { b.engine.OS = "linux" }, want: "Docker runs containers of linux; want containers of windows"},
		"late on 2016":     {change: func(b *bare) { on2016(b); b.engine.Version = "23.0.1" }, want: "Docker 23.0.1 needs Windows build 17763, and this is build 14393; want Docker 17.06 to 20.10", repair: on2016},
		"stopped on 2016":  {change: func(b *bare) { on2016(b); b.down = errors.New("no pipe") }, want: "build 14393 needs a version before 23", repair: on2016},
		"early on 2016":    {change: func(b *bare) { on2016(b); b.engine.Version = "1.12.2-cs2-ws-beta" }, want: "engine: Docker 1.12.2-cs2-ws-beta is older than 17.06; want Docker 17.06 to 20.10", repair: on2016},
		"early on Windows": {change: version("17.03.1-ee-3"), want: "engine: Docker 17.03.1-ee-3 is older than 17.06; want Docker 17.06 or later"},
		"early on Linux":   {system: "linux", change: version("17.05.0-ce"), want: "engine: Docker 17.05.0-ce is older than 17.06; want Docker 17.06 or later"},
		"new on Linux": {system: "linux", change: func(b *bare) {
			b.parts.Engine = engineOf(b.T, dockertest.Options{Version: "31.0.0", APIVersion: "1.64", MinAPIVersion: "1.60"})
		}, want: "engine: this Docker is too new: it accepts no API version before 1.60, and this kubelet supports 1.24 to 1.51; install an older Docker, or a newer kubelet"},
		"very early on Linux": {system: "linux", change: version("1.13.1"), want: "engine: Docker 1.13.1 is older than 17.06; want Docker 17.06 or later"},
	} {
		t.Run(name, c.check)
	}
}

// TestAcceptedEngines: the oldest supported engine, late ones, and builds of developers whose versions have another form.
func TestAcceptedEngines(t *testing.T) {
	for version, api := range map[string]string{"17.06.0-ce": "1.30", "17.06.2-ee-6": "1.30", "18.09.1": "1.39", "29.1.0": "1.51", "dev": "1.51", "": "1.48", "0.0.0-20260101": "1.47"} {
		t.Run(fmt.Sprintf("%q", version), func(t *testing.T) {
			t.Parallel()
			b := newBare(t, "linux")
			b.engine.Version, b.engine.APIVersion = version, api
			b.must(b.join())
		})
	}
}

// engineOf asks a fake engine by the Docker client.
func engineOf(t *testing.T, options dockertest.Options) func(context.Context) (docker.Info, error) {
	server := httptest.NewServer(dockertest.New(options))
	t.Cleanup(server.Close)
	engine, err := docker.New(docker.Config{Host: "tcp://" + server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	return engine.Client.Info
}
