package engine

import "net"

// serverPID is 0, unknown: the client's pipe hides the handle by which Windows would tell, and nothing is measured by it there.
func serverPID(net.Conn) int { return 0 }
