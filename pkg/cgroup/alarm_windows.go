package cgroup

import "errors"

// Windows has no cgroups, so there are no Places to watch.
func watchUsage(string, uint64, func()) (func(), error) { return nil, errors.ErrUnsupported }

func watchPressure(string, string, func()) (func(), error) { return nil, errors.ErrUnsupported }
