package host

import "errors"

// Adapters returns errors.ErrUnsupported: what passed the interfaces of Linux is in /proc.
func Adapters() ([]Adapter, error) { return nil, errors.ErrUnsupported }
