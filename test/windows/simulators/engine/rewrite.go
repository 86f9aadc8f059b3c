package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
)

var (
	ofContainer = regexp.MustCompile(`^/containers/[^/]+/json$`)
	ofStats     = regexp.MustCompile(`^/containers/[^/]+/stats$`)
	ofImage     = regexp.MustCompile(`^/images/.+/json$`)
	ofNetwork   = regexp.MustCompile(`^/networks/[^/]+$`)
)

// modify turns the Linux engine's answers into those of Windows.
func (e *Engine) modify(r *http.Response) error {
	e.identify(r.Header)
	if r.StatusCode != http.StatusOK {
		return nil
	}
	where := r.Request.URL.Path
	if m := versioned.FindStringSubmatch(where); m != nil {
		where = m[2]
	}
	get := r.Request.Method == http.MethodGet
	switch {
	case get && where == "/version":
		return rewrite(r, e.rewriteVersion)
	case get && where == "/info":
		return rewrite(r, e.rewriteInfo)
	case get && where == "/containers/json":
		return rewriteList(r, func(v map[string]any) bool { e.rewriteSummary(v); return true })
	case get && ofContainer.MatchString(where):
		return rewrite(r, e.rewriteContainer)
	case get && ofStats.MatchString(where):
		return rewriteStream(r, rewriteStats)
	case get && where == "/events":
		return rewriteStream(r, rewriteEvent)
	case get && where == "/images/json":
		return nil
	case get && ofImage.MatchString(where):
		return rewrite(r, e.rewriteImage)
	case get && where == "/networks":
		return rewriteList(r, e.rewriteNetwork, e.adoptedNetworks()...)
	case get && ofNetwork.MatchString(where):
		return rewrite(r, func(v map[string]any) { e.rewriteNetwork(v) })
	}
	return nil
}

func rewrite(r *http.Response, change func(map[string]any)) error {
	var v map[string]any
	if err := decode(r, &v); err != nil {
		return err
	}
	change(v)
	return encode(r, v)
}

func rewriteList(r *http.Response, change func(map[string]any) (keep bool), more ...map[string]any) error {
	var all []map[string]any
	if err := decode(r, &all); err != nil {
		return err
	}
	out := []map[string]any{}
	for _, v := range all {
		if change(v) {
			out = append(out, v)
		}
	}
	return encode(r, append(out, more...))
}

func decode(r *http.Response, into any) error {
	defer r.Body.Close()
	decoder := json.NewDecoder(r.Body)
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("the engine beneath answered %s with no JSON: %w", r.Request.URL.Path, err)
	}
	return nil
}

func encode(r *http.Response, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return nil
}

// rewriteStream changes each value of a stream as it arrives.
func rewriteStream(r *http.Response, change func(map[string]any) any) error {
	from := r.Body
	out, in := io.Pipe()
	go func() {
		decoder, encoder := json.NewDecoder(from), json.NewEncoder(in)
		decoder.UseNumber()
		for {
			var v map[string]any
			err := decoder.Decode(&v)
			if err == nil {
				err = encoder.Encode(change(v))
			}
			if err != nil {
				_ = in.CloseWithError(err)
				return
			}
		}
	}()
	r.Body, r.ContentLength = stream{out, from}, -1
	r.Header.Del("Content-Length")
	return nil
}

// stream closes both its ends.
type stream struct {
	*io.PipeReader
	from io.Closer
}

func (s stream) Close() error {
	_ = s.PipeReader.Close()
	return s.from.Close()
}

// rewriteContainer shows a container as the client created it, with the state of the Linux container.
func (e *Engine) rewriteContainer(v map[string]any) {
	config, _ := v["Config"].(map[string]any)
	labels, _ := config["Labels"].(map[string]any)
	text, _ := labels[keptLabel].(string)
	delete(labels, keptLabel)
	var k kept
	if json.Unmarshal([]byte(text), &k) != nil || k.Config == nil || k.Host == nil {
		return // not created by this engine
	}
	config["User"], config["WorkingDir"], config["Volumes"] = k.Config.User, k.Config.WorkingDir, k.Config.Volumes
	if k.Host.NetworkMode == "" {
		k.Host.NetworkMode = "default"
	}
	v["HostConfig"] = k.Host
	id, _ := v["Id"].(string)
	if state, ok := v["State"].(map[string]any); ok && state["Running"] == false {
		if code, ok := e.store().Ended[id]; ok {
			state["ExitCode"] = code
		}
	}
	v["Platform"], v["Driver"] = "windows", "windowsfilter"
	v["LogPath"] = `C:\ProgramData\docker\containers\` + id + `\` + id + "-json.log"
	v["ResolvConfPath"], v["HostnamePath"], v["HostsPath"], v["MountLabel"], v["ProcessLabel"], v["AppArmorProfile"] = "", "", "", "", "", ""
	v["GraphDriver"] = map[string]any{"Name": "windowsfilter", "Data": map[string]string{"dir": `C:\ProgramData\docker\windowsfilter\` + id}}
	volumes, _ := request{engine: e, Config: k.Config, Host: k.Host}.volumes()
	v["Mounts"] = points(volumes)
	rewriteNetworks(v)
}

func (e *Engine) rewriteSummary(v map[string]any) {
	labels, _ := v["Labels"].(map[string]any)
	delete(labels, keptLabel)
	if h, ok := v["HostConfig"].(map[string]any); ok && h["NetworkMode"] == natBeneath {
		h["NetworkMode"] = "nat"
	}
	rewriteNetworks(v)
}

func rewriteNetworks(v map[string]any) {
	settings, _ := v["NetworkSettings"].(map[string]any)
	if networks, ok := settings["Networks"].(map[string]any); ok {
		settings["Networks"] = renamed(networks, natBeneath, "nat")
	}
}

func rewriteEvent(v map[string]any) any {
	actor, _ := v["Actor"].(map[string]any)
	attributes, _ := actor["Attributes"].(map[string]any)
	delete(attributes, keptLabel)
	if v["Type"] == "network" && attributes["name"] == natBeneath {
		attributes["name"], attributes["type"] = "nat", "nat"
	}
	return v
}

// rewriteStats turns Linux statistics into those of HCS: CPU in 100 ns, commit and private working set, no cgroups.
// Source: moby daemon/stats_windows.go.
func rewriteStats(v map[string]any) any {
	number := func(path ...string) uint64 {
		var at any = v
		for _, name := range path {
			m, _ := at.(map[string]any)
			at = m[name]
		}
		n, _ := at.(json.Number)
		value, _ := strconv.ParseUint(n.String(), 10, 64)
		return value
	}
	id, _ := v["id"].(string)
	name, _ := v["name"].(string)
	const perNanosecond = 100
	usage := number("memory_stats", "usage")
	out := container.StatsResponse{
		ID: id, Name: name, Read: timeOf(v["read"]), PreRead: timeOf(v["preread"]), NumProcs: uint32(number("num_procs")),
		CPUStats: container.CPUStats{CPUUsage: container.CPUUsage{
			TotalUsage:        number("cpu_stats", "cpu_usage", "total_usage") / perNanosecond,
			UsageInKernelmode: number("cpu_stats", "cpu_usage", "usage_in_kernelmode") / perNanosecond,
			UsageInUsermode:   number("cpu_stats", "cpu_usage", "usage_in_usermode") / perNanosecond,
		}},
		MemoryStats: container.MemoryStats{Commit: usage, CommitPeak: max(usage, number("memory_stats", "max_usage")), PrivateWorkingSet: usage},
	}
	out.PreCPUStats.CPUUsage.TotalUsage = number("precpu_stats", "cpu_usage", "total_usage") / perNanosecond
	networks, _ := v["networks"].(map[string]any)
	out.Networks = map[string]container.NetworkStats{}
	for name := range networks {
		out.Networks[strings.ToUpper(name)] = container.NetworkStats{ // HCS uses the endpoint's GUID as the key
			RxBytes: number("networks", name, "rx_bytes"), RxPackets: number("networks", name, "rx_packets"), RxDropped: number("networks", name, "rx_dropped"),
			TxBytes: number("networks", name, "tx_bytes"), TxPackets: number("networks", name, "tx_packets"), TxDropped: number("networks", name, "tx_dropped"),
		}
	}
	return out
}

func timeOf(v any) time.Time {
	text, _ := v.(string)
	t, _ := time.Parse(time.RFC3339Nano, text)
	return t
}
