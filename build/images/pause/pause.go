// Command pause is the first process of a pod: it holds the pod's namespaces, lets the kernel reap the pod's orphans, and ends when
// it is told to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// childEnded is SIGCHLD, by number since Windows has no name for it. A process that ignores it leaves no zombies, also none of the
// orphans that come to process 1 of a shared process namespace.
const childEnded = syscall.Signal(17)

func main() {
	signal.Ignore(childEnded)
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM)
	<-told
}
