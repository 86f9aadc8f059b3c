package podspec

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// RecursivelyReadOnly reports whether a mount is recursively read-only (KEP-3857). The error says in upstream's words why it cannot be.
func RecursivelyReadOnly(vm *v1.VolumeMount, supported bool) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	fail := func(format string, args ...any) (bool, error) {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is "+format, append([]any{vm.Name}, args...)...)
	}
	switch {
	case !vm.ReadOnly:
		return fail("not read-only")
	case vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone:
		return fail("not compatible with propagation %q", *vm.MountPropagation)
	case *vm.RecursiveReadOnly == v1.RecursiveReadOnlyIfPossible:
		return supported, nil
	case *vm.RecursiveReadOnly != v1.RecursiveReadOnlyEnabled:
		return false, fmt.Errorf("unknown recursive read-only mode %q", *vm.RecursiveReadOnly)
	case !supported:
		return fail("not supported by the runtime (it needs engine API 1.44 and kernel 5.12); IfPossible does without it")
	}
	return true, nil
}
