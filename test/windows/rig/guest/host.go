//go:build !windows

package main

import (
	"fmt"
	"os"
)

// main says where this program belongs; without it `go vet` of this directory would find no file on Linux.
func main() {
	fmt.Fprintln(os.Stderr, "guest: runs inside a Wine prefix only: build it for Windows")
	os.Exit(2)
}
