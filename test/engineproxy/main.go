// Command engineproxy stands between a kubelet and its Docker engine and makes the engine look like one of another version:
//
//	kubelet --> engineproxy: versions refused, fields and calls of other versions taken out --> engine
//
// So one engine at hand is evidence for many: of an old one that ignores what it does not know, and of today's, which refuse old clients
// and no longer send old fields. What cannot be played (abilities that the engine behind does not have) is refused, never ignored.
// The tables in changes.go follow the Engine API version history of the moby repository (api/docs/CHANGELOG.md, formerly
// docs/api/version-history.md), where a row's version names the section.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	listen := flag.String("listen", "", "socket to listen on: unix:///path")
	engine := flag.String("engine", "", "the engine's socket: unix:///path")
	api := flag.String("api", "", "what to look like: "+known())
	flag.Parse()
	if err := run(*listen, *engine, *api); err != nil {
		fmt.Fprintln(os.Stderr, "engineproxy:", err)
		os.Exit(1)
	}
}

func run(listen, engine, api string) error {
	face, ok := faces[api]
	if !ok {
		return fmt.Errorf("-api %q: must be one of %s", api, known())
	}
	socket, ok1 := strings.CutPrefix(listen, "unix://")
	behind, ok2 := strings.CutPrefix(engine, "unix://")
	if !ok1 || !ok2 {
		return fmt.Errorf("-listen %q and -engine %q: must begin with unix://", listen, engine)
	}
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) { // of a proxy that was killed
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newProxy(face, behind), ReadHeaderTimeout: time.Minute}
	return server.Serve(listener)
}
