// Command proxy is the service proxy of a node: it makes Services reachable from this host and its pods.
package main

import (
	"os"

	"github.com/winkube/winkube/cmd/kube-proxy/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:]))
}
