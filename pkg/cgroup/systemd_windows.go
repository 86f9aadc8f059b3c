package cgroup

// systemdUnits is never called: there is no Tree on Windows.
func systemdUnits() units { return nil }
