package record

import (
	"encoding/json"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Variables through which Microsoft's hcsshim calls vmcompute.dll and computenetwork.dll. Tap reports renamed ones, which are nil here.
var (
	//go:linkname hnsCall github.com/Microsoft/hcsshim/internal/hns.procHNSCall
	hnsCall *windows.LazyProc
	//go:linkname hcnHNSCall github.com/Microsoft/hcsshim/hcn.procHNSCall
	hcnHNSCall *windows.LazyProc

	//go:linkname hcnEnumerateNetworks github.com/Microsoft/hcsshim/hcn.procHcnEnumerateNetworks
	hcnEnumerateNetworks *windows.LazyProc
	//go:linkname hcnOpenNetwork github.com/Microsoft/hcsshim/hcn.procHcnOpenNetwork
	hcnOpenNetwork *windows.LazyProc
	//go:linkname hcnCreateNetwork github.com/Microsoft/hcsshim/hcn.procHcnCreateNetwork
	hcnCreateNetwork *windows.LazyProc
	//go:linkname hcnModifyNetwork github.com/Microsoft/hcsshim/hcn.procHcnModifyNetwork
	hcnModifyNetwork *windows.LazyProc
	//go:linkname hcnQueryNetwork github.com/Microsoft/hcsshim/hcn.procHcnQueryNetworkProperties
	hcnQueryNetwork *windows.LazyProc
	//go:linkname hcnDeleteNetwork github.com/Microsoft/hcsshim/hcn.procHcnDeleteNetwork
	hcnDeleteNetwork *windows.LazyProc
	//go:linkname hcnCloseNetwork github.com/Microsoft/hcsshim/hcn.procHcnCloseNetwork
	hcnCloseNetwork *windows.LazyProc

	//go:linkname hcnEnumerateEndpoints github.com/Microsoft/hcsshim/hcn.procHcnEnumerateEndpoints
	hcnEnumerateEndpoints *windows.LazyProc
	//go:linkname hcnOpenEndpoint github.com/Microsoft/hcsshim/hcn.procHcnOpenEndpoint
	hcnOpenEndpoint *windows.LazyProc
	//go:linkname hcnCreateEndpoint github.com/Microsoft/hcsshim/hcn.procHcnCreateEndpoint
	hcnCreateEndpoint *windows.LazyProc
	//go:linkname hcnModifyEndpoint github.com/Microsoft/hcsshim/hcn.procHcnModifyEndpoint
	hcnModifyEndpoint *windows.LazyProc
	//go:linkname hcnQueryEndpoint github.com/Microsoft/hcsshim/hcn.procHcnQueryEndpointProperties
	hcnQueryEndpoint *windows.LazyProc
	//go:linkname hcnDeleteEndpoint github.com/Microsoft/hcsshim/hcn.procHcnDeleteEndpoint
	hcnDeleteEndpoint *windows.LazyProc
	//go:linkname hcnCloseEndpoint github.com/Microsoft/hcsshim/hcn.procHcnCloseEndpoint
	hcnCloseEndpoint *windows.LazyProc

	//go:linkname hcnEnumerateLoadBalancers github.com/Microsoft/hcsshim/hcn.procHcnEnumerateLoadBalancers
	hcnEnumerateLoadBalancers *windows.LazyProc
	//go:linkname hcnOpenLoadBalancer github.com/Microsoft/hcsshim/hcn.procHcnOpenLoadBalancer
	hcnOpenLoadBalancer *windows.LazyProc
	//go:linkname hcnCreateLoadBalancer github.com/Microsoft/hcsshim/hcn.procHcnCreateLoadBalancer
	hcnCreateLoadBalancer *windows.LazyProc
	//go:linkname hcnModifyLoadBalancer github.com/Microsoft/hcsshim/hcn.procHcnModifyLoadBalancer
	hcnModifyLoadBalancer *windows.LazyProc
	//go:linkname hcnQueryLoadBalancer github.com/Microsoft/hcsshim/hcn.procHcnQueryLoadBalancerProperties
	hcnQueryLoadBalancer *windows.LazyProc
	//go:linkname hcnDeleteLoadBalancer github.com/Microsoft/hcsshim/hcn.procHcnDeleteLoadBalancer
	hcnDeleteLoadBalancer *windows.LazyProc
	//go:linkname hcnCloseLoadBalancer github.com/Microsoft/hcsshim/hcn.procHcnCloseLoadBalancer
	hcnCloseLoadBalancer *windows.LazyProc

	//go:linkname hcsOpen github.com/Microsoft/hcsshim/internal/vmcompute.procHcsOpenComputeSystem
	hcsOpen *windows.LazyProc
	//go:linkname hcsProperties github.com/Microsoft/hcsshim/internal/vmcompute.procHcsGetComputeSystemProperties
	hcsProperties *windows.LazyProc
	//go:linkname hcsModify github.com/Microsoft/hcsshim/internal/vmcompute.procHcsModifyComputeSystem
	hcsModify *windows.LazyProc
)

// taps are all procedures that Tap records.
func taps() []tap {
	out := []tap{
		{HNS, "HNSCall", &hnsCall, callHNS}, {HNS, "HNSCall", &hcnHNSCall, callHNS},
		{HNS, "HcnEnumerateNetworks", &hcnEnumerateNetworks, enumerate}, {HNS, "HcnOpenNetwork", &hcnOpenNetwork, openID},
		{HNS, "HcnCreateNetwork", &hcnCreateNetwork, create}, {HNS, "HcnModifyNetwork", &hcnModifyNetwork, modify},
		{HNS, "HcnQueryNetworkProperties", &hcnQueryNetwork, query}, {HNS, "HcnDeleteNetwork", &hcnDeleteNetwork, remove}, {HNS, "HcnCloseNetwork", &hcnCloseNetwork, closeHandle},
		{HNS, "HcnEnumerateEndpoints", &hcnEnumerateEndpoints, enumerate}, {HNS, "HcnOpenEndpoint", &hcnOpenEndpoint, openID},
		{HNS, "HcnCreateEndpoint", &hcnCreateEndpoint, createWithin}, {HNS, "HcnModifyEndpoint", &hcnModifyEndpoint, modify},
		{HNS, "HcnQueryEndpointProperties", &hcnQueryEndpoint, query}, {HNS, "HcnDeleteEndpoint", &hcnDeleteEndpoint, remove}, {HNS, "HcnCloseEndpoint", &hcnCloseEndpoint, closeHandle},
		{HNS, "HcnEnumerateLoadBalancers", &hcnEnumerateLoadBalancers, enumerate}, {HNS, "HcnOpenLoadBalancer", &hcnOpenLoadBalancer, openID},
		{HNS, "HcnCreateLoadBalancer", &hcnCreateLoadBalancer, create}, {HNS, "HcnModifyLoadBalancer", &hcnModifyLoadBalancer, modify},
		{HNS, "HcnQueryLoadBalancerProperties", &hcnQueryLoadBalancer, query}, {HNS, "HcnDeleteLoadBalancer", &hcnDeleteLoadBalancer, remove}, {HNS, "HcnCloseLoadBalancer", &hcnCloseLoadBalancer, closeHandle},
		{HCS, "HcsOpenComputeSystem", &hcsOpen, openName}, {HCS, "HcsGetComputeSystemProperties", &hcsProperties, query}, {HCS, "HcsModifyComputeSystem", &hcsModify, modify},
	}
	return append(out, ipTaps()...)
}

// wide converts a Windows string; nil stays nil.
func wide(p *uint16) json.RawMessage {
	if p == nil {
		return nil
	}
	return Text(windows.UTF16PtrToString(p))
}

func wideIn(p *uint16) json.RawMessage {
	if p == nil {
		return encode("")
	}
	return wide(p)
}

// at is a string that a function returned, if any.
func at(p **uint16) json.RawMessage {
	if p == nil {
		return nil
	}
	return wide(*p)
}

func guid(id *windows.GUID) json.RawMessage {
	text := id.String()
	return encode(text[1 : len(text)-1])
}

func callHNS(t tapped) uintptr {
	return windows.NewCallback(func(method, path, object *uint16, response **uint16) uintptr {
		open := t.r.ask(t.service, t.name, wideIn(method), wideIn(path), wideIn(object))
		code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(method)), uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(object)), uintptr(unsafe.Pointer(response)))
		open.answer(uint32(code), nil, given(at(response))...)
		return code
	})
}

func enumerate(t tapped) uintptr {
	return windows.NewCallback(func(query *uint16, out, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, wideIn(query))
		code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(query)), uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(at(out), at(record))...)
		return code
	})
}

// handle is the handle that a function returned.
func (t tapped) handle(code uintptr, out *uintptr) json.RawMessage {
	if int32(code) < 0 || out == nil {
		return nil
	}
	return encode(t.handles.opened(*out))
}

func openID(t tapped) uintptr {
	return windows.NewCallback(func(id *windows.GUID, out *uintptr, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, guid(id))
		code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(id)), uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(t.handle(code, out), at(record))...)
		return code
	})
}

func openName(t tapped) uintptr {
	return windows.NewCallback(func(id *uint16, out *uintptr, result **uint16) uintptr {
		open := t.r.ask(t.service, t.name, wideIn(id))
		code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(id)), uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(result)))
		open.answer(uint32(code), nil, given(t.handle(code, out), at(result))...)
		return code
	})
}

func create(t tapped) uintptr {
	return windows.NewCallback(func(id *windows.GUID, settings *uint16, out *uintptr, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, guid(id), wideIn(settings))
		code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(id)), uintptr(unsafe.Pointer(settings)), uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(t.handle(code, out), at(record))...)
		return code
	})
}

func createWithin(t tapped) uintptr {
	return windows.NewCallback(func(network uintptr, id *windows.GUID, settings *uint16, out *uintptr, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, encode(t.handles.name(network)), guid(id), wideIn(settings))
		code, _, _ := syscall.SyscallN(t.real, network, uintptr(unsafe.Pointer(id)), uintptr(unsafe.Pointer(settings)), uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(t.handle(code, out), at(record))...)
		return code
	})
}

func modify(t tapped) uintptr {
	return windows.NewCallback(func(handle uintptr, settings *uint16, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, encode(t.handles.name(handle)), wideIn(settings))
		code, _, _ := syscall.SyscallN(t.real, handle, uintptr(unsafe.Pointer(settings)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(at(record))...)
		return code
	})
}

func query(t tapped) uintptr {
	return windows.NewCallback(func(handle uintptr, query *uint16, out, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, encode(t.handles.name(handle)), wideIn(query))
		code, _, _ := syscall.SyscallN(t.real, handle, uintptr(unsafe.Pointer(query)), uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(at(out), at(record))...)
		return code
	})
}

func remove(t tapped) uintptr {
	return windows.NewCallback(func(id *windows.GUID, record **uint16) uintptr {
		open := t.r.ask(t.service, t.name, guid(id))
		code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(id)), uintptr(unsafe.Pointer(record)))
		open.answer(uint32(code), nil, given(at(record))...)
		return code
	})
}

func closeHandle(t tapped) uintptr {
	return windows.NewCallback(func(handle uintptr) uintptr {
		open := t.r.ask(t.service, t.name, encode(t.handles.name(handle)))
		code, _, _ := syscall.SyscallN(t.real, handle)
		open.answer(uint32(code), nil)
		return code
	})
}
