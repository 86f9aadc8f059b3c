package cgroup

import "errors"

// Windows has no cgroups, so that no Place leads here.
func watchUsage(string, uint64, func()) (func(), error) { return nil, errors.ErrUnsupported }

func watchPressure(string, string, func()) (func(), error) { return nil, errors.ErrUnsupported }
