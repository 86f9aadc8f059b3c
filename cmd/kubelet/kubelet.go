// Command kubelet is the node agent: it registers this host as a Node and runs the pods that are bound to it with Docker.
package main

import (
	"os"

	"github.com/winkube/winkube/cmd/kubelet/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:]))
}
