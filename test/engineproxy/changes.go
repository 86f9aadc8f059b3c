package main

// change says in which versions something exists. Zero: no bound.
type change struct {
	call string // METHOD and path without version; * matches one segment, ** any number
	what string // path of a JSON field, or name of a query parameter
	from version
	till version // first version without it
}

func (c change) in(v version) bool { return v >= c.from && (c.till == 0 || v < c.till) }

const (
	create  = "POST /containers/create"
	inspect = "GET /containers/*/json"
)

// calls are API calls that some versions lack.
var calls = []change{
	{call: "HEAD /_ping", from: 40}, // not versioned: added with the engine of 1.40
	{call: "GET /system/df", from: 25},
	{call: "POST /containers/prune", from: 25},
	{call: "POST /images/prune", from: 25},
	{call: "POST /networks/prune", from: 25},
	{call: "POST /volumes/prune", from: 25},
	{call: "GET /plugins", from: 25},
	{call: "GET /secrets", from: 25},
	{call: "GET /distribution/**", from: 30},
	{call: "GET /configs", from: 30},
	{call: "POST /session", from: 31},
}

// queries are query parameters that some versions lack; an engine ignores unknown ones.
var queries = []change{
	{call: "POST /containers/*/wait", what: "condition", from: 30},
	{call: "POST /images/create", what: "platform", from: 32},
	{call: "GET /containers/*/logs", what: "until", from: 35},
	{call: create, what: "platform", from: 41},
	{call: "GET /containers/*/stats", what: "one-shot", from: 41},
	{call: "GET /images/json", what: "filter", till: 41},
	{call: "GET /images/json", what: "shared-size", from: 42},
	{call: "GET /system/df", what: "type", from: 42},
	{call: "POST /containers/*/stop", what: "signal", from: 42},
	{call: "POST /containers/*/restart", what: "signal", from: 42},
	{call: "GET /images/json", what: "manifests", from: 47},
	{call: "GET /images/**/json", what: "manifests", from: 48},
}

// hostConfig are fields of HostConfig that were added or removed, in requests and answers.
var hostConfig = []change{
	{what: "Mounts", from: 25},
	{what: "AutoRemove", from: 25},
	{what: "Init", from: 25},
	{what: "NanoCpus", from: 25},
	{what: "CpuCount", from: 25},
	{what: "CpuRealtimePeriod", from: 25},
	{what: "CpuRealtimeRuntime", from: 25},
	{what: "DeviceCgroupRules", from: 28},
	{what: "Mounts[].Consistency", from: 28},
	{what: "MaskedPaths", from: 40},   // not in the history: api/docs/v1.40.yaml is the first to list both
	{what: "ReadonlyPaths", from: 40}, // see MaskedPaths
	{what: "DeviceRequests", from: 40},
	{what: "KernelMemoryTCP", from: 40, till: 52},
	{what: "Mounts[].BindOptions.NonRecursive", from: 40},
	{what: "CgroupnsMode", from: 41},
	{what: "KernelMemory", till: 42},
	{what: "ConsoleSize", from: 42},
	{what: "Mounts[].BindOptions.CreateMountpoint", from: 42},
	{what: "Annotations", from: 43},
	{what: "Mounts[].BindOptions.ReadOnlyNonRecursive", from: 44},
	{what: "Mounts[].BindOptions.ReadOnlyForceRecursive", from: 44},
	{what: "Mounts[].VolumeOptions.Subpath", from: 45},
	{what: "Mounts[].TmpfsOptions.Options", from: 46},
	{what: "Mounts[].ImageOptions", from: 48},
}

// requests are fields of request bodies.
var requests = append(below("HostConfig.", hostConfig, create), []change{
	{call: create, what: "StopTimeout", from: 25},
	{call: create, what: "Healthcheck.StartPeriod", from: 29},
	{call: create, what: "Healthcheck.StartInterval", from: 44},
	{call: create, what: "NetworkingConfig.EndpointsConfig.*.MacAddress", from: 44},
	{call: create, what: "NetworkingConfig.EndpointsConfig.*.GwPriority", from: 48},
	{call: create, what: "MacAddress", till: 52},
	{call: "POST /containers/*/exec", what: "Env", from: 25},
	{call: "POST /containers/*/exec", what: "WorkingDir", from: 35},
	{call: "POST /containers/*/exec", what: "ConsoleSize", from: 42},
	{call: "POST /exec/*/start", what: "ConsoleSize", from: 42},
	{call: "POST /containers/*/update", what: "NanoCpus", from: 28},
	{call: "POST /containers/*/update", what: "PidsLimit", from: 40},
	{call: "POST /containers/*/update", what: "KernelMemory", till: 42},
	{call: "POST /networks/create", what: "Ingress", from: 29},
	{call: "POST /networks/create", what: "CheckDuplicate", till: 44},
	{call: "POST /networks/create", what: "EnableIPv4", from: 48},
}...)

// answers are fields of response bodies.
var answers = append(below("HostConfig.", hostConfig, inspect), []change{
	{call: "GET /version", what: "MinAPIVersion", from: 25},
	{call: "GET /version", what: "Platform", from: 35},
	{call: "GET /version", what: "Components", from: 35},

	{call: "GET /info", what: "Isolation", from: 25},
	{call: "GET /info", what: "Warnings", from: 39},
	{call: "GET /info", what: "PidsLimit", from: 40},
	{call: "GET /info", what: "CgroupVersion", from: 41},
	{call: "GET /info", what: "DefaultAddressPools", from: 41},
	{call: "GET /info", what: "OSVersion", from: 41}, // not versioned: added with the engine of 1.41
	{call: "GET /info", what: "ClusterStore", till: 41},
	{call: "GET /info", what: "ClusterAdvertise", till: 41},
	{call: "GET /info", what: "KernelMemory", till: 42},
	{call: "GET /info", what: "ContainerdCommit.Expected", till: 49},
	{call: "GET /info", what: "RuncCommit.Expected", till: 49},
	{call: "GET /info", what: "InitCommit.Expected", till: 49},
	{call: "GET /info", what: "RegistryConfig.AllowNondistributableArtifactsCIDRs", till: 49},
	{call: "GET /info", what: "RegistryConfig.AllowNondistributableArtifactsHostnames", till: 49},
	{call: "GET /info", what: "BridgeNfIptables", till: 50},
	{call: "GET /info", what: "BridgeNfIp6tables", till: 50},
	{call: "GET /info", what: "KernelMemoryTCP", till: 52},

	{call: "GET /exec/*/json", what: "Pid", from: 25},

	{call: "GET /images/**/json", what: "OsVersion", from: 25},
	{call: "GET /images/**/json", what: "VirtualSize", till: 44},
	{call: "GET /images/json", what: "[].VirtualSize", till: 44},
	{call: "GET /images/**/json", what: "Container", till: 45},
	{call: "GET /images/**/json", what: "ContainerConfig", till: 45},
	{call: "GET /images/**/json", what: "Config.Hostname", till: 50},
	{call: "GET /images/**/json", what: "Config.Domainname", till: 50},
	{call: "GET /images/**/json", what: "Config.AttachStdin", till: 50},
	{call: "GET /images/**/json", what: "Config.AttachStdout", till: 50},
	{call: "GET /images/**/json", what: "Config.AttachStderr", till: 50},
	{call: "GET /images/**/json", what: "Config.Tty", till: 50},
	{call: "GET /images/**/json", what: "Config.OpenStdin", till: 50},
	{call: "GET /images/**/json", what: "Config.StdinOnce", till: 50},
	{call: "GET /images/**/json", what: "Config.Image", till: 50},

	{call: "GET /networks", what: "[].Containers", till: 28},
	{call: "GET /networks/*", what: "Created", from: 25},

	{call: "GET /containers/*/stats", what: "cpu_stats.online_cpus", from: 27},
	{call: "GET /containers/*/stats", what: "precpu_stats.online_cpus", from: 27},

	{call: inspect, what: "Config.StopTimeout", from: 25},
	{call: inspect, what: "Config.MacAddress", till: 52},
	{call: inspect, what: "NetworkSettings.Bridge", till: 52},
	{call: inspect, what: "NetworkSettings.HairpinMode", till: 52},
	{call: inspect, what: "NetworkSettings.LinkLocalIPv6Address", till: 52},
	{call: inspect, what: "NetworkSettings.LinkLocalIPv6PrefixLen", till: 52},
	{call: inspect, what: "NetworkSettings.SecondaryIPAddresses", till: 52},
	{call: inspect, what: "NetworkSettings.SecondaryIPv6Addresses", till: 52},
	{call: inspect, what: "NetworkSettings.EndpointID", till: 52},
	{call: inspect, what: "NetworkSettings.Gateway", till: 52},
	{call: inspect, what: "NetworkSettings.GlobalIPv6Address", till: 52},
	{call: inspect, what: "NetworkSettings.GlobalIPv6PrefixLen", till: 52},
	{call: inspect, what: "NetworkSettings.IPAddress", till: 52},
	{call: inspect, what: "NetworkSettings.IPPrefixLen", till: 52},
	{call: inspect, what: "NetworkSettings.IPv6Gateway", till: 52},
	{call: inspect, what: "NetworkSettings.MacAddress", till: 52},

	{call: "GET /events", what: "status", till: 52},
	{call: "GET /events", what: "id", till: 52},
	{call: "GET /events", what: "from", till: 52},
}...)

// headers are response headers that some versions lack.
var headers = []change{
	{what: "Api-Version", from: 25},
	{what: "Docker-Experimental", from: 25},
	{what: "Ostype", from: 25}, // not in the history: added with Api-Version
	{what: "Cache-Control", from: 40},
	{what: "Pragma", from: 40},
	{what: "Builder-Version", from: 40},
	{what: "Swarm", from: 42},
}

// harmless are fields that may be dropped: an engine without them behaves as if they were set.
var harmless = []string{
	"HostConfig.Mounts[].BindOptions.ReadOnlyNonRecursive", // before 1.44 read-only was never recursive
	"HostConfig.Mounts[].BindOptions.CreateMountpoint",
}

// below prefixes fields with a parent, in one call.
func below(parent string, fields []change, call string) []change {
	var out []change
	for _, field := range fields {
		field.call, field.what = call, parent+field.what
		out = append(out, field)
	}
	return out
}
