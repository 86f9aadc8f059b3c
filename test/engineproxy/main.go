// Command engineproxy is a proxy between a kubelet and its Docker engine that makes the engine look like another
// version:
//
//	kubelet --> engineproxy: rejects versions, removes fields and calls of other versions --> engine
//
// It lets one engine test compatibility with many: with old ones that ignore unknown fields, and with current ones that
// reject old clients and no longer send old fields. It rejects what it cannot simulate (features that the real engine
// lacks); it never ignores that. The tables in changes.go follow the Engine API version history of the moby repository
// (api/docs/CHANGELOG.md, formerly docs/api/version-history.md); a row's version is the section.
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
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) { // left by a killed proxy
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newProxy(face, behind), ReadHeaderTimeout: time.Minute}
	return server.Serve(listener)
}
