package host

// Adapter is a Windows network adapter with its traffic since it was created: bytes, and packets with errors.
type Adapter struct {
	Name                                 string
	Up, Loopback                         bool
	Default                              bool // it has the default route
	RxBytes, RxErrors, TxBytes, TxErrors uint64
}
