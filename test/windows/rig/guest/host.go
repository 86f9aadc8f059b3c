//go:build !windows

package main

import (
	"fmt"
	"os"
)

// main prints where this program belongs. Without it, `go vet` would find no file in this directory on Linux.
func main() {
	fmt.Fprintln(os.Stderr, "guest: runs inside a Wine prefix only: build it for Windows")
	os.Exit(2)
}
