package host

// Adapters is nil: what passed the interfaces of Linux stands in /proc.
var Adapters func() ([]Adapter, error)
