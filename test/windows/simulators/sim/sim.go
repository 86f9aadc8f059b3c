// Package sim is a simulated Windows host as its network APIs show it: HNS, IP Helper, netsh and performance counters, and compute systems, one World with one
// log, which Windows programs under Wine reach by shims over loopback.
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
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hns"
	"github.com/winkube/winkube/test/windows/simulators/iphelper"
	"github.com/winkube/winkube/test/windows/simulators/netsh"
	"github.com/winkube/winkube/test/windows/simulators/pdh"
)

// World is one simulated host.
type World struct {
	Log      *calls.Log
	HNS      *hns.HNS
	IPHelper *iphelper.Host
	Netsh    *netsh.Netsh
	PDH      *pdh.PDH
	// Compute gives the properties of a compute system of HCS as JSON (hcsshim internal/hcs/schema1 ContainerProperties); nil: there is none.
	Compute func(id string) (properties string, found bool)
	// Address is the host's own on its network adapters; the zero Addr: none.
	Address netip.Addr

	build  int
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	given  replies
}

// New returns a freshly installed host of a Windows build with the given network adapters (none: "Ethernet").
func New(build int, adapters ...string) *World {
	w := &World{Log: &calls.Log{}, build: build}
	w.IPHelper = iphelper.New(w.Log)
	w.Netsh = netsh.New(w.Log)
	w.PDH = pdh.New(w.Log)
	w.HNS = hns.New(hns.Options{Build: build, Adapters: adapters, Log: w.Log, OnAdapter: func(name string, added bool, addrs []netip.Prefix) {
		w.IPHelper.SetAdapter(name, added, addrs)
	}, Address: func() netip.Addr { return w.Address }})
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Reboot restarts the host: what is not persistent is gone.
func (w *World) Reboot() {
	w.IPHelper.Reboot()
	w.HNS.Reboot()
}

// String is the state of all simulators but the counters.
func (w *World) String() string {
	return w.HNS.String() + w.IPHelper.String() + w.Netsh.String()
}

// Serve answers shims at l until Close, which also closes l. It returns immediately.
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

// Close ends what Serve began.
func (w *World) Close() {
	w.cancel()
	w.done.Wait()
}

// answer serves one call. A request that is no request is dropped and logged: the shim reports on its program's standard error that it got no
// answer.
func (w *World) answer(conn net.Conn) {
	fields, err := readRequest(conn)
	if err != nil {
		w.drop(fields, err)
		return
	}
	words := strings.Fields(string(fields[0])) // service, function and, where it may come again, the name of the call
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

// drop logs that a request got no answer. That a program ended while it asked is nothing unknown; that it asked in another form is.
func (w *World) drop(fields [][]byte, err error) {
	call := calls.Call{Service: "sim", Function: "request", Detail: err.Error(), Unknown: errors.Is(err, errRequest)}
	if len(fields) > 0 {
		call.Function = string(fields[0])
	}
	w.Log.Add(call)
}

// dispatch answers at conn, and returns when nothing more is to be said there. An error is one of writing, or errRequest.
func (w *World) dispatch(conn net.Conn, service, function string, args [][]byte) error {
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
	case "pdh":
		return w.pdh(conn, function, args)
	case "hcs":
		properties, result := w.compute(function, args)
		return writeAnswer(conn, result, []byte(properties))
	}
	return fmt.Errorf("%w: there is no %q", errRequest, service)
}

// keep keeps the connection: changes go out until the shim closes it.
func (w *World) keep(conn net.Conn, subscribe func(context.Context)) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.done.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // ends when the shim is gone
		cancel()
	})
	subscribe(ctx)
	_ = conn.Close()
}

// netsh's request is the arguments, each ended with a zero, the script's text and whether there is one.
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

// noSystem is HCS_E_SYSTEM_NOT_FOUND.
const noSystem = 0xc037010e

// compute answers for the Host Compute Service.
func (w *World) compute(function string, args [][]byte) (properties string, result uint32) {
	if len(args) == 0 || w.Compute == nil {
		return "", noSystem
	}
	properties, found := w.Compute(string(args[0]))
	switch {
	case !found:
		result = noSystem
	case function == "HcsModifyComputeSystem" && len(args) == 2:
		properties, result = "", w.modify(string(args[0]), args[1])
	}
	w.Log.Add(calls.Call{Service: "hcs", Function: function, Args: []string{string(args[0])}, Result: result})
	return properties, result
}

// modify connects a container to an endpoint, or takes it off it (hcsshim hnsendpoint.go modifyNetworkEndpoint). Other changes are invalid arguments.
func (w *World) modify(container string, request []byte) uint32 {
	const invalid = 0x80070057
	var in struct{ ResourceType, Settings, RequestType string }
	if err := json.Unmarshal(request, &in); err != nil || in.ResourceType != "Network" || in.RequestType != "Add" && in.RequestType != "Remove" {
		return invalid
	}
	result, _ := w.HNS.Attach(container, in.Settings, in.RequestType == "Add")
	return uint32(result)
}
