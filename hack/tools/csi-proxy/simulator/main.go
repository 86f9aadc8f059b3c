//go:build windows

// Program simulator is csi-proxy.exe on a simulated Windows: named pipes, services, rules for paths and their versions are those of upstream's
// csi-proxy 1.1.3, unmodified, and what it does to the host is simulated. It ends when its standard input does.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/Microsoft/go-winio"
	"github.com/kubernetes-csi/csi-proxy/pkg/server"
	"github.com/kubernetes-csi/csi-proxy/pkg/server/filesystem"
	"github.com/kubernetes-csi/csi-proxy/pkg/server/smb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "csi-proxy:", err)
		os.Exit(1)
	}
}

func run() error {
	kubeletPath := flag.String("kubelet-path", `C:\var\lib\kubelet`, "as csi-proxy.exe has it")
	links := flag.String("links", "", "file with the links of the simulated host")
	flag.Parse()
	h := &host{file: *links, mapped: map[string]bool{}}
	files, err := filesystem.NewServer([]string{*kubeletPath}, h)
	if err != nil {
		return err
	}
	shares, err := smb.NewServer(h, files)
	if err != nil {
		return err
	}
	listening := make(chan any)
	ended := make(chan []error, 1)
	go func() { ended <- server.NewServer(files, shares).Start(listening) }()
	select {
	case errs := <-ended:
		return fmt.Errorf("cannot serve: %v", errs)
	case <-listening:
	}
	for _, group := range []string{"filesystem", "smb"} {
		// Wine connects the first client to an instance that go-winio never serves and that Windows does not offer to clients.
		first, err := winio.DialPipe(`\\.\pipe\csi-proxy-`+group+"-v1", nil)
		if err != nil {
			return err
		}
		defer first.Close()
	}
	fmt.Println("serving")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
