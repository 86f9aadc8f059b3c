package join

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/winkube/winkube/test/lab"
)

// looks compares the running containers and the networks that dockerd.exe has with a golden file, which -update writes.
func (d *dockerNode) looks() {
	d.Helper()
	got, err := d.inEngine()
	if err != nil {
		d.Fatal(err)
	}
	golden := filepath.Join("testdata", fmt.Sprintf("%d-dockerd.engine", d.Build))
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			d.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != got {
		d.Errorf("%s: %v; dockerd.exe has\n%s", golden, err, got)
	}
	d.did("dockerd.exe: its containers and networks", "ok")
}

// inEngine describes the running containers and the pods' network in dockerd.exe, with names in place of varying values.
func (d *dockerNode) inEngine() (string, error) {
	all, err := d.inspects()
	if err != nil {
		return "", err
	}
	names, err := d.names()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if one := all[name]; one.State.Running && lasting[one.Config.Labels["io.kubernetes.pod.name"]] > 0 {
			fmt.Fprintf(&b, "container %s\n  image %s, entrypoint %q, command %q, host name %q\n", name, one.Config.Image, one.Config.Entrypoint, one.Config.Cmd, one.Config.Hostname)
			for _, key := range slices.Sorted(maps.Keys(one.Config.Labels)) {
				if value := one.Config.Labels[key]; value != "" {
					fmt.Fprintf(&b, "  label %s %q\n", key, value)
				}
			}
			lines, err := filled(one.HostConfig)
			if err != nil {
				return "", err
			}
			lines = append(lines, endpointsOf(one)...)
			fmt.Fprintf(&b, "  %s\n", strings.Join(lines, "\n  "))
		}
	}
	var networks []struct {
		Name, Driver    string
		Labels, Options map[string]string
	}
	if err := d.get("/networks", &networks); err != nil {
		return "", err
	}
	for _, n := range networks {
		if n.Driver == "l2bridge" {
			fmt.Fprintf(&b, "network %s\n  labels %v\n  options %v\n", n.Name, n.Labels, n.Options)
		}
	}
	text := strings.NewReplacer(d.space, "NAMESPACE", d.host.Name, "NODE", lab.PodCIDR, "all-pods", lab.ServiceCIDR, "all-services", lab.DNSAddress, "cluster-dns").Replace(b.String())
	for _, one := range varyingInEngine {
		text = one.pattern.ReplaceAllString(text, one.name)
	}
	return address.ReplaceAllStringFunc(text, func(found string) string {
		if name := names[found]; name != "" {
			return name
		}
		return found
	}), nil
}

// filled returns the fields of a HostConfig that are not empty, one a line, sorted.
func filled(config *container.HostConfig) (lines []string, err error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value, err := json.Marshal(fields[key])
		if err != nil {
			return nil, err
		}
		if !slices.Contains([]string{"null", `""`, "0", "false", "[]", "{}", "[0,0]"}, string(value)) {
			lines = append(lines, "host "+key+" "+string(value))
		}
	}
	return lines, nil
}

func endpointsOf(one container.InspectResponse) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(one.NetworkSettings.Networks)) {
		e := one.NetworkSettings.Networks[name]
		lines = append(lines, fmt.Sprintf("network %s: address %s/%d, gateway %s, DNS %v", name, e.IPAddress, e.IPPrefixLen, e.Gateway, e.DNSNames))
	}
	return lines
}

var varyingInEngine = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\b(sha256:)?[0-9a-f]{64}\b`), "ID"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\b[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}\b`), "HNS-ID"},
	{regexp.MustCompile(`(container.hash) "[0-9a-f]+"`), `$1 "HASH"`},
	{regexp.MustCompile(`(kube-api-access-)\w+`), "${1}NAME"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "SHORT-ID"},
}
