package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// Libraries call Windows through variables of type *windows.LazyProc. A tap replaces such a variable by a procedure whose address is a callback of
// ours, which calls the original. So a recording contains the real calls of all our packages, and those need no hooks.
type tap struct {
	service string
	name    string             // of the function
	proc    **windows.LazyProc // the library's variable; contains nil if the library is not part of this program
	// callback returns the callback around the function at real.
	callback func(t tapped) uintptr
}

// tapped is a recorded function.
type tapped struct {
	r       *Recorder
	service string
	name    string
	real    uintptr
	handles *handles
}

// lazyProc and proc mirror the layout of package windows' types.
type (
	lazyProc struct {
		Name string
		mu   sync.Mutex
		l    *windows.LazyDLL
		proc *proc
	}
	proc struct {
		Dll  *windows.DLL
		Name string
		addr uintptr
	}
)

// procAt is a procedure at an address; nil: the layout of package windows' types has changed.
func procAt(name string, addr uintptr) *windows.LazyProc {
	if unsafe.Sizeof(lazyProc{}) != unsafe.Sizeof(windows.LazyProc{}) || unsafe.Sizeof(proc{}) != unsafe.Sizeof(windows.Proc{}) {
		return nil
	}
	out := &windows.LazyProc{Name: name}
	(*lazyProc)(unsafe.Pointer(out)).proc = &proc{Name: name, addr: addr}
	if out.Find() != nil || out.Addr() != addr {
		return nil
	}
	return out
}

// Tap records the program's calls to HNS, HCS and IP Helper until undo. missing lists what is not recorded, and why. No other goroutine may call
// these services meanwhile, except within Roomy.
//
// Callers pass the system addresses on their own stacks, which must not move while a callback runs. So garbage collection, which would shrink stacks,
// is off until undo, and Roomy enlarges the stacks beforehand.
func (r *Recorder) Tap() (undo func(), missing []string) {
	percent := debug.SetGCPercent(-1)
	known := &handles{names: map[uintptr]string{}}
	var undone []func()
	for _, t := range taps() {
		before, why := *t.proc, ""
		if *t.proc, why = t.tapped(r, before, known); why != "" {
			missing = append(missing, fmt.Sprintf("%s %s: %s", t.service, t.name, why))
			continue
		}
		undone = append(undone, func() { *t.proc = before })
	}
	return func() {
		for _, f := range undone {
			f()
		}
		debug.SetGCPercent(percent)
	}, missing
}

// tapped returns the replacement of a procedure, or the same procedure and why it is not recorded.
func (t tap) tapped(r *Recorder, before *windows.LazyProc, known *handles) (now *windows.LazyProc, why string) {
	if before == nil {
		return before, "this program does not call it"
	}
	if before.Find() != nil {
		return before, "this Windows has no such function"
	}
	if now = procAt(t.name, t.callback(tapped{r, t.service, t.name, before.Addr(), known})); now == nil {
		return before, "this program cannot be tapped"
	}
	return now, ""
}

// Roomy calls f with enough stack for everything that f calls. Use it in each goroutine that calls the tapped services.
func Roomy(f func()) {
	grow(0)
	f()
}

// grow uses a quarter of a MiB of stack.
//
//go:noinline
func grow(depth int) byte {
	var room [4096]byte
	room[depth] = byte(depth)
	if depth < 64 {
		return room[depth] + grow(depth+1)
	}
	return room[0]
}

// handles number the handles of HNS and HCS: "handle 1" is the first one opened.
type handles struct {
	mu    sync.Mutex
	last  int
	names map[uintptr]string
}

func (h *handles) opened(handle uintptr) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	h.names[handle] = fmt.Sprintf("handle %d", h.last)
	return h.names[handle]
}

func (h *handles) name(handle uintptr) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name := h.names[handle]; name != "" {
		return name
	}
	return "unknown handle"
}

// keys are the registry values below HKEY_LOCAL_MACHINE that this program reads or depends on; no names: all values.
var keys = []struct {
	path  string
	names []string
}{
	{`SOFTWARE\Microsoft\Windows NT\CurrentVersion`, []string{"CurrentBuild", "CurrentBuildNumber", "CurrentMajorVersionNumber", "UBR", "ProductName", "DisplayVersion", "ReleaseId", "InstallationType", "EditionID"}},
	{`SYSTEM\CurrentControlSet\Control`, []string{"WaitToKillServiceTimeout"}},
	{`SYSTEM\CurrentControlSet\Control\ProductOptions`, []string{"ProductType"}},
	{`SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters`, []string{"BootId"}},
	{`SYSTEM\CurrentControlSet\Services\Tcpip\Parameters`, []string{"MaxUserPort", "TcpTimedWaitDelay", "IPEnableRouter", "ReservedPorts"}},
	{`SYSTEM\CurrentControlSet\Services\hns\State`, nil},
	{`SYSTEM\CurrentControlSet\Services\hns`, []string{"Start", "Type", "ObjectName"}},
	{`SYSTEM\CurrentControlSet\Services\PortProxy\v4tov4\tcp`, nil},
}

// ReadRegistry records the registry values that this program depends on.
func (r *Recorder) ReadRegistry() {
	for _, k := range keys {
		open := r.ask(Registry, `HKLM\`+k.path)
		key, err := registry.OpenKey(registry.LOCAL_MACHINE, k.path, registry.QUERY_VALUE)
		if errors.Is(err, registry.ErrNotExist) {
			open.answer(uint32(windows.ERROR_FILE_NOT_FOUND), nil)
			continue
		}
		if err != nil {
			open.answer(0, err)
			continue
		}
		open.answer(0, nil, encode(valuesOf(key, k.names)))
		_ = key.Close()
	}
}

func valuesOf(key registry.Key, names []string) map[string]any {
	if names == nil {
		names, _ = key.ReadValueNames(0)
	}
	out := map[string]any{}
	for _, name := range names {
		if text, _, err := key.GetStringValue(name); err == nil {
			out[name] = text
		} else if n, _, err := key.GetIntegerValue(name); err == nil {
			out[name] = n
		} else if list, _, err := key.GetStringsValue(name); err == nil {
			out[name] = list
		}
	}
	return out
}

// given returns the non-nil values for Out.
func given(values ...json.RawMessage) (out []json.RawMessage) {
	for _, v := range values {
		if v != nil {
			out = append(out, v)
		}
	}
	return out
}
