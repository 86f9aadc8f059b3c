// Package sim simulates a Windows host's network APIs: HNS, IP Helper, netsh and performance counters, and compute systems. Windows programs under
// Wine reach a World over loopback, through shims. All its simulators share one log.
//
//	proxy.exe, kubelet.exe --> shim DLLs, netsh.exe --> TCP --> World --> hns, iphelper, netsh, pdh
package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hcs"
	"github.com/winkube/winkube/test/windows/simulators/hns"
	"github.com/winkube/winkube/test/windows/simulators/iphelper"
	"github.com/winkube/winkube/test/windows/simulators/netsh"
	"github.com/winkube/winkube/test/windows/simulators/pdh"
	"github.com/winkube/winkube/test/windows/simulators/powershell"
)

// World is one simulated host.
type World struct {
	Log      *calls.Log
	HNS      *hns.HNS
	IPHelper *iphelper.Host
	Netsh    *netsh.Netsh
	PDH      *pdh.PDH
	// PowerShell is powershell.exe if it is installed (InstallPowerShell). Otherwise programs get Wine's, which silently does nothing.
	PowerShell *powershell.PowerShell
	// HCS serves calls about layers and about the systems that programs create in it; Compute serves all other systems.
	HCS *hcs.HCS
	// Compute returns the properties of an HCS compute system as JSON (hcsshim internal/hcs/schema1 ContainerProperties). Nil means that
	// there are none.
	Compute func(id string) (properties string, found bool)
	// Replay answers in place of the simulators if it returns ok. Nil means that the simulators always answer.
	Replay func(service, function string, args [][]byte) (result uint32, fields [][]byte, ok bool)
	// Address is the host's own on its network adapters; the zero Addr means none.
	Address netip.Addr
	// OnAdapter is called when HNS adds or removes an adapter, with HNS's lock held. Nil is allowed.
	OnAdapter func(name string, added bool, addresses []netip.Prefix)
	// OnAttach is called when HCS has attached a container to an endpoint (hns.Connection). Nil is allowed.
	OnAttach func(container string, to hns.Connection)

	build  int
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	given  replies
}

// New returns a newly installed host of a Windows build with the given network adapters (default: "Ethernet").
func New(build int, adapters ...string) *World {
	return NewWith(hns.Options{Build: build, Adapters: adapters})
}

// NewWith returns a host whose HNS has the options o; NewWith sets the fields shared with the other simulators.
func NewWith(o hns.Options) *World {
	w := &World{Log: &calls.Log{}, build: o.Build}
	w.IPHelper = iphelper.New(w.Log)
	w.Netsh = netsh.New(w.Log)
	w.PDH = pdh.New(w.Log)
	w.PowerShell = powershell.New(w.Log)
	w.HCS = hcs.New(w.Log)
	o.Log, o.Address = w.Log, func() netip.Addr { return w.Address }
	o.OnAdapter = func(name string, added bool, addrs []netip.Prefix) {
		w.IPHelper.SetAdapter(name, added, addrs)
		if w.OnAdapter != nil {
			w.OnAdapter(name, added, addrs)
		}
	}
	w.HNS = hns.New(o)
	w.HCS.Attach = func(container, endpoint string, attach bool) uint32 {
		result, _ := w.HNS.Attach(container, endpoint, attach)
		return uint32(result)
	}
	w.Netsh.Reserved = w.HNS.Reserving
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Reboot restarts the host: state that is not persistent is lost.
func (w *World) Reboot() {
	w.IPHelper.Reboot()
	w.HCS.Reboot()
	w.HNS.Reboot()
}

// String returns the state of all simulators except the counters.
func (w *World) String() string {
	return w.HNS.String() + w.IPHelper.String() + w.Netsh.String()
}

// Serve serves shims on l until Close, which also closes l. It returns immediately.
func (w *World) Serve(l net.Listener) {
	w.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.done.Go(func() {
				defer conn.Close()
				stop := context.AfterFunc(w.ctx, func() { _ = conn.Close() })
				defer stop()
				w.answer(conn)
			})
		}
	})
	context.AfterFunc(w.ctx, func() { _ = l.Close() })
}

// Close stops Serve.
func (w *World) Close() {
	w.cancel()
	w.done.Wait()
}

// answer serves one call. A malformed request is dropped and logged; the shim then reports on its program's standard error that it got no
// answer.
func (w *World) answer(conn net.Conn) {
	fields, err := readRequest(conn)
	if err != nil {
		w.drop(fields, err)
		return
	}
	words := strings.Fields(string(fields[0])) // service, function and, if it may be repeated, the call's name
	if len(words) < 2 || len(words) > 3 {
		w.drop(fields, fmt.Errorf("%w: %q", errRequest, fields[0]))
		return
	}
	if len(words) == 3 {
		mine, first := w.given.of(words[2])
		if !first {
			w.Log.Add(calls.Call{Service: "sim", Function: "again", Args: words[:2]})
			<-mine.done
			_, _ = conn.Write(mine.text)
			return
		}
		defer close(mine.done)
		conn = &recorded{Conn: conn, reply: mine}
	}
	if err := w.dispatch(conn, words[0], words[1], fields[1:]); err != nil {
		w.drop(fields, fmt.Errorf("cannot answer: %w", err))
	}
}

// drop logs a request that got no answer. A program that ended during the request is not an unknown call; a malformed request is.
func (w *World) drop(fields [][]byte, err error) {
	call := calls.Call{Service: "sim", Function: "request", Detail: err.Error(), Unknown: errors.Is(err, errRequest)}
	if len(fields) > 0 {
		call.Function = string(fields[0])
	}
	w.Log.Add(call)
}

// dispatch serves a call on conn and returns when the answer is complete. The error is a write error or errRequest.
func (w *World) dispatch(conn net.Conn, service, function string, args [][]byte) error {
	if w.Replay != nil {
		if result, fields, ok := w.Replay(service, function, args); ok {
			return writeAnswer(conn, result, fields...)
		}
	}
	switch service {
	case "hns":
		if function == hns.Notifies {
			w.keep(conn, func(ctx context.Context) {
				w.HNS.Subscribe(ctx, func(value uint32) error { return writeAnswer(conn, value) })
			})
			return nil
		}
		text := make([]string, len(args))
		for i, arg := range args {
			text[i] = string(arg)
		}
		result, value, record := w.HNS.Call(function, text)
		return writeAnswer(conn, uint32(result), []byte(value), []byte(record))
	case "iphelper":
		if iphelper.Notifies(function) && len(args) == 1 {
			w.keep(conn, func(ctx context.Context) {
				w.IPHelper.Subscribe(ctx, function, args[0], func(kind uint32, row []byte) error { return writeAnswer(conn, kind, row) })
			})
			return nil
		}
		result, row := w.IPHelper.Call(function, args)
		return writeAnswer(conn, result, row)
	case "netsh":
		output, code := w.netsh(args)
		return writeAnswer(conn, uint32(code), []byte(output))
	case "powershell":
		output, code := w.powershell(args)
		return writeAnswer(conn, uint32(code), []byte(output))
	case "pdh":
		return w.pdh(conn, function, args)
	case "hcs":
		if function == "WaitProcess" && len(args) == 1 {
			w.keep(conn, func(ctx context.Context) { w.awaitProcess(ctx, conn, numberOf(args[0])) })
			return nil
		}
		if !slices.Contains(ofSystems, function) || function != "HcsModifyComputeSystem" && len(args) > 0 && w.HCS.Has(string(args[0])) {
			result, value := w.HCS.Call(function, args)
			if function == "HcsCreateProcess" && result == 0 {
				return writeAnswer(conn, result, value, []byte(w.HCS.Output(numberOf(value))))
			}
			return writeAnswer(conn, result, value)
		}
		properties, result := w.compute(function, args)
		return writeAnswer(conn, result, []byte(properties))
	}
	return fmt.Errorf("%w: there is no %q", errRequest, service)
}

// keep keeps the connection open and sends changes until the shim closes it.
func (w *World) keep(conn net.Conn, subscribe func(context.Context)) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.done.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // returns when the shim is gone
		cancel()
	})
	subscribe(ctx)
	_ = conn.Close()
}

// netsh serves a request: the zero-terminated arguments, the script's text and whether there is a script.
func (w *World) netsh(args [][]byte) (string, int) {
	if len(args) != 3 {
		return "", 1
	}
	var words []string
	for word := range bytesBeforeZeros(args[0]) {
		words = append(words, word)
	}
	if string(args[2]) != "present" {
		return w.Netsh.Run(words, nil)
	}
	script := string(args[1])
	return w.Netsh.Run(words, &script)
}

// powershell serves a request like netsh's, without a script.
func (w *World) powershell(args [][]byte) (string, int) {
	if len(args) == 0 {
		return "", 1
	}
	return w.PowerShell.Run(slices.Collect(bytesBeforeZeros(args[0])))
}

func (w *World) pdh(conn net.Conn, function string, args [][]byte) error {
	if len(args) != 2 || len(args[0]) != 8 {
		return fmt.Errorf("%w: want a handle and a text", errRequest)
	}
	result, opened, out := w.PDH.Call(function, order.Uint64(args[0]), string(args[1]))
	if opened != 0 {
		return writeAnswer(conn, result, order.AppendUint64(nil, opened))
	}
	return writeAnswer(conn, result, []byte(out))
}

// awaitProcess answers with a process' exit code once it has ended by itself, and not at all if it never does.
func (w *World) awaitProcess(ctx context.Context, conn net.Conn, process uint32) {
	if code, ok := w.HCS.Wait(ctx, process); ok {
		_ = writeAnswer(conn, code) // the program may be gone
	}
}

// numberOf parses the number of a process; 0 is none.
func numberOf(text []byte) uint32 {
	n, err := strconv.ParseUint(string(text), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// noSystem is HCS_E_SYSTEM_NOT_FOUND.
const noSystem = 0xc037010e

// ofSystems are the functions that need an existing system.
var ofSystems = []string{"HcsOpenComputeSystem", "HcsGetComputeSystemProperties", "HcsModifyComputeSystem"}

// compute simulates the Host Compute Service.
func (w *World) compute(function string, args [][]byte) (properties string, result uint32) {
	found := len(args) > 0 && w.HCS.Has(string(args[0]))
	if len(args) == 0 || w.Compute == nil && !found {
		return "", noSystem
	}
	if !found {
		properties, found = w.Compute(string(args[0]))
	}
	switch {
	case !found:
		result = noSystem
	case function == "HcsModifyComputeSystem" && len(args) == 2:
		properties, result = "", w.modify(string(args[0]), args[1])
	}
	w.Log.Add(calls.Call{Service: "hcs", Function: function, Args: []string{string(args[0])}, Result: result})
	return properties, result
}

// modify attaches a container to an endpoint or detaches it (hcsshim hnsendpoint.go modifyNetworkEndpoint). Other changes are invalid arguments.
func (w *World) modify(container string, request []byte) uint32 {
	const invalid = 0x80070057
	var in struct{ ResourceType, Settings, RequestType string }
	if err := json.Unmarshal(request, &in); err != nil || in.ResourceType != "Network" || in.RequestType != "Add" && in.RequestType != "Remove" {
		return invalid
	}
	result, _ := w.HNS.Attach(container, in.Settings, in.RequestType == "Add")
	if result == 0 {
		w.HCS.Attached(container, in.Settings, in.RequestType == "Add")
	}
	if to, ok := w.HNS.Connection(in.Settings); ok && result == 0 && in.RequestType == "Add" && w.OnAttach != nil {
		w.OnAttach(container, to)
	}
	return uint32(result)
}
