package host

// Adapter is a network adapter of Windows and what passed it since it is there. Bytes, and packets with errors.
type Adapter struct {
	Name                                 string
	Up, Loopback                         bool
	Default                              bool // the default route leads through it
	RxBytes, RxErrors, TxBytes, TxErrors uint64
}
