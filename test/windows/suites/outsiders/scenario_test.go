package outsiders

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// play sends all of winkube's requests to an engine. again restarts it on the same host.
func (r *report) play(again func()) {
	r.t.Helper()
	r.facts()
	lower := r.makeInHNS("winkube-lower", "10.244.1.0/24", "10.244.1.2")
	upper := r.makeInHNS("winkube-upper", "10.244.2.0/24", "10.244.2.2")
	made := []pod.EngineNetwork{
		podNetwork("winkube-lower", "l2bridge", "10.244.1.0/24", "10.244.1.2", "hnsid", lower, "enable_outboundnat", "true", "outboundnat_exceptions", "10.0.0.0/8,10.96.0.0/12"),
		podNetwork("winkube-upper", "l2bridge", "10.244.2.0/24", "10.244.2.2", "hnsid", strings.ToUpper(upper), "enable_outboundnat", "true", "outboundnat_exceptions", "10.0.0.0/8,10.96.0.0/12"),
		podNetwork("winkube-transparent", "transparent", "10.244.3.0/24", "10.244.3.1", "interface", "Ethernet 2"),
		podNetwork("winkube-nat", "nat", "10.244.4.0/24", "10.244.4.1"),
	}
	r.say("")
	r.ensure("create", made)
	r.refusedNetworks()
	r.networks("as made", made)
	r.say("")
	r.ensure("ensure again", made)
	r.containers()
	r.refusals()
	afterwards := r.left()
	again()
	r.networks("after a restart of the engine", made)
	afterwards()
	r.say("")
	r.ensure("ensure", made)
	r.say("")
	for _, n := range made {
		status, answer := r.ask("DELETE", "/networks/"+n.Name, nil)
		r.say("remove %s: %d %s", n.Name, status, message(answer))
	}
	for _, name := range []string{"nat", "nowhere"} {
		status, answer := r.ask("DELETE", "/networks/"+name, nil)
		r.say("remove %s: %d %s", name, status, message(answer))
	}
	r.networks("after they were removed", made)
}

// facts records how the engine describes itself.
func (r *report) facts() {
	_, version := r.ask("GET", "/version", nil)
	r.say("version %v, API %v to %v, %v", version["Version"], version["MinAPIVersion"], version["ApiVersion"], version["KernelVersion"])
	_, info := r.ask("GET", "/info", nil)
	plugins, _ := info["Plugins"].(map[string]any)
	for _, key := range []string{"OSType", "OperatingSystem", "OSVersion", "Driver", "DriverStatus", "Isolation", "DockerRootDir", "SecurityOptions", "LiveRestoreEnabled"} {
		r.say("info %s %s", key, line(info[key]))
	}
	r.say("info networks %s, logs %s", line(plugins["Network"]), line(plugins["Log"]))
}

const inHNS = `{"Name":"%s","Type":"L2Bridge","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"%s","Routes":[{"NextHop":"%s","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`

// makeInHNS creates a network through HNS v2, as package hns does, and returns its ID in v2's spelling.
func (r *report) makeInHNS(name, subnet, gateway string) string {
	r.t.Helper()
	result, handle, record := r.hns.Call("HcnCreateNetwork", []string{"00000000-0000-0000-0000-000000000000", fmt.Sprintf(inHNS, name, subnet, gateway)})
	if result != 0 {
		r.t.Fatalf("%#x %s", uint32(result), record)
	}
	_, text, _ := r.hns.Call("HcnQueryNetworkProperties", []string{handle, `{"SchemaVersion":{"Major":2,"Minor":0}}`})
	r.hns.Call("HcnCloseNetwork", []string{handle})
	var n hns.Network
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		r.t.Fatal(err)
	}
	return n.ID
}

const shim = "com.docker.network.windowsshim."

// podNetwork returns a network like package network's plans; options come in pairs.
func podNetwork(name, driver, subnet, gateway string, options ...string) pod.EngineNetwork {
	n := pod.EngineNetwork{Name: name, Driver: driver, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, Gateways: []netip.Addr{netip.MustParseAddr(gateway)},
		Options: map[string]string{shim + "networkname": name}, Labels: map[string]string{network.LabelPods: "true"}}
	for i := 0; i < len(options); i += 2 {
		n.Options[shim+options[i]] = options[i+1]
	}
	return n
}

// ensure lets the kubelet's own code create or find each network.
func (r *report) ensure(what string, made []pod.EngineNetwork) {
	for _, n := range made {
		text := "well"
		if err := r.store().EnsureNetwork(r.t.Context(), n); err != nil {
			text = blank(err.Error())
		}
		r.say("%s %s, %s: %s", what, n.Name, n.Driver, text)
	}
}

// refusedNetworks sends requests that an engine may refuse.
func (r *report) refusedNetworks() {
	config := func(subnet, gateway string) map[string]any {
		return map[string]any{"Config": []any{map[string]string{"Subnet": subnet, "Gateway": gateway}}}
	}
	for _, one := range []struct {
		what string
		body map[string]any
	}{
		{"of a name that is there", map[string]any{"Name": "winkube-nat", "Driver": "nat"}},
		{"predefined", map[string]any{"Name": "nat", "Driver": "nat"}},
		{"without a name", map[string]any{"Driver": "nat"}},
		{"overlay", map[string]any{"Name": "o", "Driver": "overlay"}},
		{"of no known driver", map[string]any{"Name": "b", "Driver": "macvlan"}},
		{"IPv6 alone", map[string]any{"Name": "v6", "Driver": "nat", "EnableIPv6": true, "IPAM": config("fd00::/64", "fd00::1")}},
		{"on no adapter", map[string]any{"Name": "l", "Driver": "l2bridge", "IPAM": config("10.250.0.0/24", "10.250.0.1"), "Options": map[string]string{shim + "interface": "Ethernet 7"}}},
	} {
		status, answer := r.ask("POST", "/networks/create", one.body)
		r.say("create network %s: %d %s", one.what, status, message(answer))
	}
}

// networks records Docker's networks, whether the kubelet treats them as the pods' network, and HNS's networks.
func (r *report) networks(when string, made []pod.EngineNetwork) {
	r.t.Helper()
	r.say("\nnetworks %s", when)
	predefined := []string{"nat", "none"}
	names := slices.Clone(predefined)
	for _, n := range made {
		names = append(names, n.Name)
	}
	all, err := r.store().Networks(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for i, name := range names {
		status, n := r.ask("GET", "/networks/"+url.PathEscape(name), nil)
		if status != http.StatusOK {
			r.say("  %s: %d %s", name, status, message(n))
			continue
		}
		ipam, _ := n["IPAM"].(map[string]any)
		at := slices.IndexFunc(all, func(one pod.EngineNetwork) bool { return one.Name == name })
		ours := at >= 0 && i >= len(predefined) && network.Ours(all[at], name)
		r.say("  %s: driver %v, ours %t, labels %s, options %s, IPAM %v %s", name, n["Driver"], ours, line(n["Labels"]), line(n["Options"]), ipam["Driver"], line(ipam["Config"]))
	}
	r.say("in HNS")
	for text := range strings.Lines(r.hns.String()) {
		r.b.WriteString("  " + blank(text))
	}
}

// containers creates, starts, kills and removes each container in pkg/docker/convert's golden files for this build.
func (r *report) containers() {
	r.t.Helper()
	root, err := rig.Root()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range []string{"plain", "everything", "handler", "hyperv", "init"} {
		text, err := os.ReadFile(fmt.Sprintf("%s/pkg/docker/convert/testdata/%s.windows-%d.golden", root, name, r.build))
		if err != nil {
			r.t.Fatal(err)
		}
		var list []map[string]any
		if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), `"d:\\logs`, `"C:\\logs`)), &list); err != nil { // the rig has one drive
			r.t.Fatal(err)
		}
		var ids []string
		for _, one := range list {
			sandbox := ""
			if len(ids) > 0 {
				sandbox = ids[0]
			}
			ids = append(ids, r.container(name, one, sandbox))
		}
		for _, id := range slices.Backward(ids) {
			if id != "" {
				status, answer := r.ask("DELETE", "/containers/"+id+"?force=1", nil)
				r.say("  remove %d %s", status, message(answer))
			}
		}
	}
}

// container creates and starts a container, in sandbox's network if sandbox is set, and returns its ID.
func (r *report) container(name string, one map[string]any, sandbox string) string {
	r.t.Helper()
	config, _ := one["Config"].(map[string]any)
	host, _ := one["HostConfig"].(map[string]any)
	config["Image"], config["HostConfig"] = image, host
	if mode, _ := host["NetworkMode"].(string); strings.HasPrefix(mode, "container:") {
		host["NetworkMode"] = "container:" + sandbox
	} else if mode == "cbr0" {
		host["NetworkMode"] = "winkube-upper"
	}
	status, answer := r.ask("POST", "/containers/create?name="+name+"-"+fmt.Sprint(one["Name"]), config)
	r.say("\n%s %v: create %d %s %s", name, one["Name"], status, message(answer), line(answer["Warnings"]))
	id, _ := answer["Id"].(string)
	if status != http.StatusCreated {
		return id
	}
	_, have := r.ask("GET", "/containers/"+id+"/json", nil)
	kept, _ := have["HostConfig"].(map[string]any)
	for _, key := range slices.Sorted(mapKeys(host)) {
		if want, got := line(host[key]), line(kept[key]); want != got {
			r.say("  asked %s %s, has %s", key, want, got)
		}
	}
	r.start(id)
	return id
}

// start starts a container and records the engine's requests to HNS and HCS.
func (r *report) start(id string) {
	r.t.Helper()
	documents, endpoints := r.documents(), len(r.endpoints())
	status, answer := r.ask("POST", "/containers/"+id+"/start", nil)
	r.say("  start %d %s", status, message(answer))
	for _, text := range r.endpoints()[endpoints:] {
		r.say("  HNS endpoint %s", blank(text))
	}
	r.since(documents)
}

// left leaves a container running when the engine stops; the returned function checks it afterwards.
func (r *report) left() func() {
	r.t.Helper()
	body := json.RawMessage(fmt.Sprintf(`{"Image":%q,"HostConfig":{"NetworkMode":"winkube-upper"}}`, image))
	status, answer := r.ask("POST", "/containers/create?name=left", body)
	r.say("\nleft running: create %d %s", status, message(answer))
	r.start("left")
	look := func() {
		_, have := r.ask("GET", "/containers/left/json", nil)
		state, _ := have["State"].(map[string]any)
		r.say("  state %v, exit code %s, restarts %v", state["Status"], line(state["ExitCode"]), have["RestartCount"])
	}
	look()
	return func() {
		r.say("\nleft running, afterwards")
		look()
		r.start("left")
		look()
		status, answer := r.ask("POST", "/containers/left/stop", nil)
		r.say("  stop %d %s", status, message(answer))
		look()
		status, answer = r.ask("DELETE", "/containers/left", nil)
		r.say("  remove %d %s", status, message(answer))
	}
}

// refusals sends requests that Windows may refuse: the simulated engine's rules, one by one.
func (r *report) refusals() {
	r.t.Helper()
	r.say("\ncontainers that winkube does not ask for")
	for i, text := range []string{
		`"Isolation":"vm"`, `"Privileged":true`, `"ReadonlyRootfs":true`, `"CpuRealtimePeriod":1`, `"CpuShares":-1`, `"CpuShares":10001`, `"CpuPercent":101`, `"CpuCount":-1`,
		`"NanoCpus":1000000000,"CpuPercent":5`, `"NanoCpus":1000000000,"CpuShares":5`, `"NanoCpus":-1`, `"NanoCpus":9000000000000`, `"BlkioWeight":10`,
		`"BlkioDeviceReadBps":[{"Path":"x","Rate":1}]`, `"CgroupParent":"x"`, `"CpuPeriod":1`, `"CpuQuota":1`, `"CpusetCpus":"0"`, `"CpusetMems":"0"`, `"KernelMemory":1`,
		`"MemoryReservation":1`, `"MemorySwap":1`, `"MemorySwappiness":5`, `"MemorySwappiness":-1`, `"OomKillDisable":true`, `"PidsLimit":5`, `"Ulimits":[{"Name":"nofile","Soft":1,"Hard":1}]`,
		`"NetworkMode":"container:nowhere"`, `"NetworkMode":"container:x","Dns":["10.0.0.1"]`, `"NetworkMode":"container:x","ExtraHosts":["a:10.0.0.1"]`,
		`"NetworkMode":"container:x","Isolation":"hyperv"`, `"NetworkMode":"host"`, `"NetworkMode":"nowhere"`,
		`"Binds":["C:\\data\\hosts:C:\\hosts"]`, `"Binds":["C:\\nowhere:C:\\x"]`, `"Binds":["C:\\data:C:\\"]`, `"Binds":["data:C:\\x"]`, `"Binds":["\\\\.\\pipe\\a:\\\\.\\pipe\\b:ro"]`,
		`"Mounts":[{"Type":"bind","Source":"C:\\data","Target":"C:\\x","BindOptions":{"Propagation":"rslave"}}]`, `"Mounts":[{"Type":"tmpfs","Target":"C:\\x"}]`,
		`"SecurityOpt":["seccomp=unconfined"]`, `"SecurityOpt":["credentialspec=contoso"]`, `"SecurityOpt":["credentialspec=file://nowhere.json"]`, `"SecurityOpt":["credentialspec=registry://nowhere"]`,
		`"PortBindings":{"80/tcp":[{"HostPort":"1"},{"HostPort":"2"}]}`, `"PortBindings":{"80/tcp":[{"HostIp":"10.0.0.1","HostPort":"3"}]}`, `"PortBindings":{"80/tcp":[{"HostPort":"4-5"}]}`, `"RestartPolicy":{"Name":"sometimes"}`,
		`"LogConfig":{"Type":"journald"}`, `"PidMode":"host"`, `"OomScoreAdj":5`, `"CapAdd":["NET_ADMIN"]`, `"Tmpfs":{"/x":""}`, `"ShmSize":5`, `"Memory":5`,
	} {
		more := ""
		if strings.HasPrefix(text, `"Port`) { // an engine binds ports that are exposed
			more = `"ExposedPorts":{"80/tcp":{}},`
		}
		status, answer := r.ask("POST", fmt.Sprintf("/containers/create?name=refused%d", i), json.RawMessage(fmt.Sprintf(`{"Image":%q,%s"HostConfig":{%s}}`, image, more, text)))
		r.say("  %s: %d %s %s", text, status, message(answer), warnings(answer))
		id, _ := answer["Id"].(string)
		if id == "" {
			continue
		}
		if slices.ContainsFunc([]string{"Network", "Security", "Port"}, func(prefix string) bool { return strings.HasPrefix(text, `"`+prefix) }) {
			status, answer = r.ask("POST", "/containers/"+id+"/start", nil)
			r.say("    start %d %s", status, message(answer))
		}
		if status, answer := r.ask("DELETE", "/containers/"+id+"?force=1", nil); status != http.StatusNoContent {
			r.say("    remove %d %s", status, message(answer))
		}
	}
}

func warnings(answer map[string]any) string {
	if list, _ := answer["Warnings"].([]any); len(list) > 0 {
		return line(list)
	}
	return ""
}
