package hcs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// system is a compute system: a container that has not ended.
type system struct {
	id       string
	document containerConfig
	running  bool
	attached []string // endpoints that were attached after the start
}

// containerConfig is a container document in HCS's first schema. Source: hcsshim internal/hcs/schema1 ContainerConfig. Other fields are refused.
type containerConfig struct {
	SystemType, Name, Owner, VolumePath, LayerFolderPath, HostName, Credentials, NetworkSharedContainerName, DNSSearchList string
	IgnoreFlushesDuringBoot, HvPartition, AllowUnqualifiedDNSQuery                                                         bool
	Layers                                                                                                                 []struct{ ID, Path string }
	ProcessorCount                                                                                                         uint32
	ProcessorWeight, StorageIOPSMaximum, StorageBandwidthMaximum                                                           uint64
	ProcessorMaximum, MemoryMaximumInMB                                                                                    int64
	MappedDirectories                                                                                                      []struct {
		HostPath, ContainerPath       string
		ReadOnly, CreateInUtilityVM   bool
		BandwidthMaximum, IOPSMaximum uint64
	}
	MappedPipes     []struct{ HostPath, ContainerPipeName string }
	EndpointList    []string
	HvRuntime       *struct{ ImagePath string }
	AssignedDevices []struct{ InterfaceClassGuid string }
}

// processConfig defines a process to start. Source: hcsshim internal/hcs/schema1 ProcessConfig.
type processConfig struct {
	CommandLine, User, WorkingDirectory                                 string
	Environment                                                         map[string]string
	EmulateConsole, CreateStdInPipe, CreateStdOutPipe, CreateStdErrPipe bool
	ConsoleSize                                                         [2]uint
}

// Has reports whether a compute system with that ID exists.
func (h *HCS) Has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.systems[id] != nil
}

func strict(text string, into any) *refusal {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return &refusal{invalidJSON, err.Error(), true}
	}
	return nil
}

// create creates a system that is not running yet. A container that shares another's network needs that container; a container without a virtual
// machine needs its volume.
func (h *HCS) create(id, document string) *refusal {
	one := &system{id: id}
	if err := strict(document, &one.document); err != nil {
		return err
	}
	h.documents = append(h.documents, Document{id, document})
	d := one.document
	c := layerCall{path: d.LayerFolderPath}
	switch {
	case h.systems[id] != nil:
		return refuse(systemExists, "system %s is there", id)
	case d.SystemType != "Container":
		return refuse(invalidJSON, "SystemType is %q", d.SystemType)
	case d.NetworkSharedContainerName != "" && h.systems[d.NetworkSharedContainerName] == nil:
		return refuse(noSystem, "there is no system %s, whose network is to be shared", d.NetworkSharedContainerName)
	case !d.HvPartition && (h.layers[c.key()] != prepared || d.VolumePath != c.volume()):
		return refuse(pathNotFound, "layer %s is not mounted at %s", d.LayerFolderPath, d.VolumePath)
	case d.HvPartition && d.HvRuntime == nil:
		return refuse(invalidJSON, "a container with a virtual machine has no HvRuntime")
	}
	h.systems[id] = one
	return nil
}

// of returns the system with an ID.
func (h *HCS) of(id string) (*system, *refusal) {
	if s := h.systems[id]; s != nil {
		return s, nil
	}
	return nil, refuse(noSystem, "there is no system %s", id)
}

// start attaches the endpoints of a system in HNS.
func (h *HCS) start(id string) ([]byte, *refusal) {
	s, err := h.of(id)
	if err != nil {
		return nil, err
	}
	if s.running {
		return nil, refuse(invalidState, "system %s runs", id)
	}
	for _, endpoint := range s.document.EndpointList {
		if h.Attach != nil {
			if result := h.Attach(id, endpoint, true); result != 0 {
				return nil, refuse(result, "HNS does not attach endpoint %s", endpoint)
			}
		}
	}
	s.running = true
	return nil, nil
}

// process starts a process in a system and returns its number. What it does is Program's.
func (h *HCS) process(id, document string) ([]byte, *refusal) {
	s, err := h.of(id)
	if err != nil {
		return nil, err
	}
	var p processConfig
	if err := strict(document, &p); err != nil {
		return nil, err
	}
	switch {
	case !s.running:
		return nil, refuse(invalidState, "system %s does not run", id)
	case p.CommandLine == "":
		return nil, refuse(invalidJSON, "CommandLine is empty")
	}
	h.lastProcess += 4
	h.run(id, p.CommandLine)
	h.documents = append(h.documents, Document{id, document})
	return strconv.AppendUint(nil, uint64(h.lastProcess), 10), nil
}

// end ends and removes a system. Shutdown and termination are the same here: no process resists.
func (h *HCS) end(id string) ([]byte, *refusal) {
	s, err := h.of(id)
	if err != nil {
		return nil, err
	}
	for _, endpoint := range append(s.attached, s.document.EndpointList...) {
		if h.Attach != nil && s.running {
			_ = h.Attach(id, endpoint, false) // the endpoint may be gone
		}
	}
	h.forget(id)
	return nil, nil
}

// properties returns the fields of hcsshim internal/hcs/schema1 ContainerProperties that need no query, and idle statistics.
func (h *HCS) properties(id, query string) ([]byte, *refusal) {
	s, err := h.of(id)
	if err != nil {
		return nil, err
	}
	var in struct{ PropertyTypes []string }
	if query != "" {
		if err := strict(query, &in); err != nil {
			return nil, err
		}
	}
	out := s.summary()
	for _, kind := range in.PropertyTypes {
		switch kind {
		case "Statistics":
			out[kind] = map[string]any{"Timestamp": "2024-01-01T00:00:00Z", "ContainerStartTime": "2024-01-01T00:00:00Z"}
		case "ProcessList":
			out[kind] = []any{}
		default:
			return nil, &refusal{notImplemented, fmt.Sprintf("property %s is not simulated", kind), true}
		}
	}
	return text(out), nil
}

func (s *system) summary() map[string]any {
	state := "Created"
	if s.running {
		state = "Running"
	}
	return map[string]any{"Id": s.id, "Name": s.document.Name, "SystemType": "Container", "RuntimeOsType": "Windows", "Owner": s.document.Owner, "State": state}
}

func text(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // only our own types are encoded
	}
	return data
}

// enumerate lists compute systems. The query has the fields of hcsshim internal/hcs/schema1 ComputeSystemQuery.
func (h *HCS) enumerate(query string) ([]byte, *refusal) {
	var in struct{ Ids, Types, Names, Owners []string }
	if err := strict(query, &in); err != nil {
		return nil, err
	}
	wants := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	out := []any{}
	for id, s := range h.systems {
		if wants(in.Ids, id) && wants(in.Types, "Container") && wants(in.Names, s.document.Name) && wants(in.Owners, s.document.Owner) {
			out = append(out, s.summary())
		}
	}
	return text(out), nil
}
