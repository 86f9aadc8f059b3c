//go:build windows

// Command guest is the rig's own program inside a prefix. It keeps Wine running, reports the Windows version and the images that
// programs load, relays a named pipe to a TCP port, and is a service that does nothing.
package main

import (
	"context"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "keep":
		return keep()
	case len(args) == 1 && args[0] == "build":
		return build()
	case len(args) > 1 && args[0] == "images":
		return images(args[1:])
	case len(args) == 2 && args[0] == "service":
		return svc.Run(args[1], service{})
	case len(args) == 2 && args[0] == "take":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		return take(ctx, args[1])
	case len(args) == 3 && args[0] == "get":
		return get(args[1], args[2])
	case len(args) == 3 && args[0] == "relay":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		return relay(ctx, args[1], args[2])
	}
	return fmt.Errorf("guest: %q: must be keep, build, images NAME..., service NAME, take PIPE, get PIPE PATH or relay PIPE HOST:PORT", args)
}

// keep runs until its input is closed.
func keep() error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// service is a service that does nothing until it is stopped.
type service struct{}

func (service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (ours bool, code uint32) {
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	for request := range requests {
		if request.Cmd == svc.Stop || request.Cmd == svc.Shutdown {
			break
		}
		status <- request.CurrentStatus
	}
	return false, 0
}

func build() error {
	v := windows.RtlGetVersion()
	kind := "workstation" // VER_NT_SERVER is 3
	if v.ProductType == 3 {
		kind = "server"
	}
	fmt.Printf("%d.%d.%d %s\n", v.MajorVersion, v.MinorVersion, v.BuildNumber, kind)
	return nil
}

// images prints a line for each name: the headers of the image that is loaded under it.
func images(names []string) error {
	for _, name := range names {
		loaded := loadedDLL
		if strings.HasSuffix(name, ".exe") {
			loaded = loadedEXE
		}
		if err := loaded(name); err != nil {
			return err
		}
	}
	return nil
}

// loadedDLL prints the headers of the image that LoadLibrary finds.
func loadedDLL(name string) error {
	handle, err := windows.LoadLibraryEx(name, 0, windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	if err != nil {
		return fmt.Errorf("cannot load %s: %w", name, err)
	}
	return printHeaders(windows.CurrentProcess(), uintptr(handle))
}

// loadedEXE starts a program suspended, prints the headers of its image and ends it before it runs.
func loadedEXE(name string) error {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		return err
	}
	path, err := windows.UTF16PtrFromString(dir + `\` + name)
	if err != nil {
		return err
	}
	startup := windows.StartupInfo{Cb: uint32(unsafe.Sizeof(windows.StartupInfo{}))}
	var process windows.ProcessInformation
	if err := windows.CreateProcess(path, nil, nil, nil, false, windows.CREATE_SUSPENDED, nil, nil, &startup, &process); err != nil {
		return fmt.Errorf("cannot start %s: %w", name, err)
	}
	defer func() { _ = windows.TerminateProcess(process.Process, 1) }()
	var info windows.PROCESS_BASIC_INFORMATION
	if err := windows.NtQueryInformationProcess(process.Process, windows.ProcessBasicInformation, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)), nil); err != nil {
		return fmt.Errorf("cannot examine %s: %w", name, err)
	}
	const imageBase = 0x10 // offset in the PEB
	var base uintptr
	peb := uintptr(unsafe.Pointer(info.PebBaseAddress))
	if err := windows.ReadProcessMemory(process.Process, peb+imageBase, (*byte)(unsafe.Pointer(&base)), unsafe.Sizeof(base), nil); err != nil {
		return fmt.Errorf("cannot examine %s: %w", name, err)
	}
	return printHeaders(process.Process, base)
}

// printHeaders prints the same as rig.identity does for a file.
func printHeaders(process windows.Handle, base uintptr) error {
	page := make([]byte, 4096)
	if err := windows.ReadProcessMemory(process, base, &page[0], uintptr(len(page)), nil); err != nil {
		return fmt.Errorf("cannot read the image's headers: %w", err)
	}
	at := int(binary.LittleEndian.Uint32(page[0x3c:]))
	var file pe.FileHeader
	var optional pe.OptionalHeader64
	n, err := binary.Decode(page[at+4:], binary.LittleEndian, &file)
	if err != nil {
		return err
	}
	if _, err := binary.Decode(page[at+4+n:], binary.LittleEndian, &optional); err != nil {
		return err
	}
	fmt.Printf("time=%d entry=%#x size=%d code=%d\n", file.TimeDateStamp, optional.AddressOfEntryPoint, optional.SizeOfImage, optional.SizeOfCode)
	return nil
}
