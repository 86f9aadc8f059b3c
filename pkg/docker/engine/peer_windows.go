package engine

import "net"

// serverPID is 0, unknown: the client's pipe hides the handle that Windows needs for the query, and no statistics use it there.
func serverPID(net.Conn) int { return 0 }
