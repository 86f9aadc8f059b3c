package host

import "errors"

// Adapters returns errors.ErrUnsupported: on Linux these counters are in /proc.
func Adapters() ([]Adapter, error) { return nil, errors.ErrUnsupported }
