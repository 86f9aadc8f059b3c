// Package hcs simulates the Host Compute Service of Windows for a program that creates containers: layers of images and containers (the storage
// calls of vmcompute.dll), compute systems and their processes. A process runs no program: Program says what it prints and whether it ends. The
// documents that define systems and processes are recorded.
//
//	dockerd.exe --> vmcompute.dll (shim) --> HCS.Call --> state of layers and systems, documents, calls.Log
//
// Layers are directories on drive C. The shim creates and removes them when the simulator allows it. Rules cite hcsshim; where no source describes
// HCS, the simulator refuses.
package hcs

import (
	"crypto/sha1"
	"fmt"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Result codes of HCS (winerror.h; hcsshim internal/hcs/errors.go).
const (
	notImplemented = 0x80004001 // E_NOTIMPL
	pathNotFound   = 0x80070003
	alreadyExists  = 0x800700b7
	invalidJSON    = 0xc037010d // HCS_E_INVALID_JSON
	invalidState   = 0xc0370105 // HCS_E_INVALID_STATE
	noSystem       = 0xc037010e // HCS_E_SYSTEM_NOT_FOUND
	systemExists   = 0xc037010f // HCS_E_SYSTEM_ALREADY_EXISTS
)

// HCS is the simulated service. It is safe for concurrent use.
type HCS struct {
	// Attach attaches a container to an HNS endpoint or detaches it, and returns HNS's result. Nil means that there is no HNS. It is called with
	// the service's lock held.
	Attach func(container, endpoint string, attach bool) uint32
	// Program says what the process of a command line does. Nil means that all processes wait silently until they are ended. It is called with the
	// service's lock held.
	Program func(commandLine string) Program
	// OnVolume is called when a layer's volume (\\?\Volume{GUID}\) appears or goes, with the service's lock held. Nil is allowed.
	OnVolume func(volume string, there bool)

	log *calls.Log

	mu          sync.Mutex
	layers      map[string]state // by path in lower case; an absent layer is on disk and inactive
	systems     map[string]*system
	processes   map[uint32]*process
	documents   []Document
	lastProcess uint32
}

// Program is what a simulated process does: it prints Output on its standard output when it starts, and ends with Code if Ends is set.
type Program struct {
	Output string
	Ends   bool
	Code   uint32
}

// Document is the definition of a compute system or process.
type Document struct {
	ID   string
	JSON string
}

// state is how far a container's layer is activated and mounted.
type state int

const (
	active state = iota + 1
	prepared
)

// New returns a service without compute systems.
func New(log *calls.Log) *HCS {
	return &HCS{log: log, layers: map[string]state{}, systems: map[string]*system{}, processes: map[uint32]*process{}, lastProcess: 1000}
}

// Documents returns the documents so far, oldest first.
func (h *HCS) Documents() []Document {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Document(nil), h.documents...)
}

// Reboot restarts the host: no layer stays mounted and all systems are gone.
func (h *HCS) Reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.layers)
	for id := range h.systems {
		h.forget(id)
	}
}

// Call serves the shim: function is its name in the DLL. It returns the HRESULT and the function's output.
func (h *HCS) Call(function string, args [][]byte) (result uint32, value []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := make([]string, len(args))
	for i, arg := range args {
		text[i] = string(arg)
	}
	call := calls.Call{Service: "hcs", Function: function, Args: text}
	value, err := h.dispatch(function, text)
	if err != nil {
		call.Result, call.Detail, call.Unknown = err.result, err.detail, err.unknown
	}
	h.log.Add(call)
	return call.Result, value
}

type refusal struct {
	result  uint32
	detail  string
	unknown bool
}

func refuse(result uint32, format string, args ...any) *refusal {
	return &refusal{result: result, detail: fmt.Sprintf(format, args...)}
}

// arguments are the calls that do not concern layers, with their number of arguments.
var arguments = map[string]int{"NameToGuid": 1, "HcsEnumerateComputeSystems": 1, "HcsCreateComputeSystem": 2, "HcsOpenComputeSystem": 1, "HcsStartComputeSystem": 1,
	"HcsCreateProcess": 2, "HcsGetComputeSystemProperties": 2, "HcsShutdownComputeSystem": 1, "HcsTerminateComputeSystem": 1}

func (h *HCS) dispatch(function string, args []string) ([]byte, *refusal) {
	want, layer := 4, layerCalls[function]
	if layer == nil {
		want = arguments[function]
	}
	if want == 0 || len(args) != want {
		return nil, &refusal{notImplemented, fmt.Sprintf("%s with %d arguments is not simulated", function, len(args)), true}
	}
	switch function {
	case "NameToGuid":
		sum := sha1.Sum([]byte(strings.ToLower(args[0])))
		return sum[:16], nil
	case "HcsEnumerateComputeSystems":
		return h.enumerate(args[0])
	case "HcsCreateComputeSystem":
		return nil, h.create(args[0], args[1])
	case "HcsOpenComputeSystem":
		_, err := h.of(args[0])
		return nil, err
	case "HcsStartComputeSystem":
		return h.start(args[0])
	case "HcsCreateProcess":
		return h.process(args[0], args[1])
	case "HcsGetComputeSystemProperties":
		return h.properties(args[0], args[1])
	case "HcsShutdownComputeSystem", "HcsTerminateComputeSystem":
		return h.end(args[0])
	}
	one := layerCall{path: args[0], there: args[1] == "there", more: args[3]}
	if args[2] != "" {
		one.parents = strings.Split(args[2], "\n")
	}
	return layer(h, one)
}

// layerCall is a call about a layer; more is the parent's name, or whether the caller passes a buffer.
type layerCall struct {
	path    string
	there   bool
	parents []string
	more    string
}

func (c layerCall) key() string { return strings.ToLower(c.path) }

// volume returns the name of the volume of a mounted container layer. HCS returns a volume for an active container layer, and the directory itself
// for an image layer, which is not a disk (hcsshim internal/wclayer/getlayermountpath.go; moby libcontainerd/local createWindows). Its name has no
// trailing backslash: who needs one adds it (hcsshim v0.15.0 internal/layers/wcow_mount.go MountSandboxVolume; moby daemon/oci_windows.go). moby before 28
// panics in a copy to C:\ if there is one (daemon/archive_windows.go).
func (c layerCall) volume() string {
	sum := sha1.Sum([]byte(c.key()))
	return fmt.Sprintf(`\\?\Volume{%x-%x-%x-%x-%x}`, sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// missing refuses a call whose layer is not on disk.
func (c layerCall) missing() *refusal {
	if !c.there {
		return refuse(pathNotFound, "there is no layer %s", c.path)
	}
	return nil
}

// made refuses a call whose layer already exists.
func (c layerCall) made() *refusal {
	if c.there {
		return refuse(alreadyExists, "layer %s is there", c.path)
	}
	return nil
}

// step moves a layer from one state to the next. The order is that of Get and Put in moby's windowsfilter: activate, prepare, unprepare,
// deactivate.
func step(from, to state) func(*HCS, layerCall) ([]byte, *refusal) {
	return func(h *HCS, c layerCall) ([]byte, *refusal) {
		if err := c.missing(); err != nil {
			return nil, err
		}
		if h.layers[c.key()] != from {
			return nil, refuse(invalidState, "layer %s is in state %d, want %d", c.path, h.layers[c.key()], from)
		}
		h.layers[c.key()] = to
		if h.OnVolume != nil && from+to == active {
			h.OnVolume(c.volume(), to == active)
		}
		return nil, nil
	}
}

var layerCalls = map[string]func(*HCS, layerCall) ([]byte, *refusal){
	"ActivateLayer":      step(0, active),
	"PrepareLayer":       step(active, prepared),
	"UnprepareLayer":     step(prepared, active),
	"DeactivateLayer":    step(active, 0),
	"LayerExists":        func(*HCS, layerCall) ([]byte, *refusal) { return nil, nil },
	"CreateLayer":        func(_ *HCS, c layerCall) ([]byte, *refusal) { return nil, c.made() },
	"CreateSandboxLayer": func(_ *HCS, c layerCall) ([]byte, *refusal) { return nil, c.made() },
	"DestroyLayer": func(h *HCS, c layerCall) ([]byte, *refusal) {
		if h.layers[c.key()] != 0 {
			return nil, refuse(invalidState, "layer %s is mounted", c.path)
		}
		return nil, c.missing()
	},
	"GetLayerMountPath": func(h *HCS, c layerCall) ([]byte, *refusal) {
		if err := c.missing(); err != nil {
			return nil, err
		}
		if h.layers[c.key()] == 0 {
			return []byte(c.path), nil
		}
		return []byte(c.volume()), nil
	},
}
