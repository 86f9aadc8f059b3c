package access

import (
	"io/fs"

	"golang.org/x/sys/windows"
)

// GroupOf says that files have no Unix group here.
func GroupOf(fs.FileInfo) (gid int64, known bool) { return 0, false }

// setList replaces the access list of a file or directory, and what its children inherit.
func setList(path, sddl string) error {
	descriptor, err := windows.SecurityDescriptorFromString(sddl)
	if err != nil {
		return err
	}
	list, _, err := descriptor.DACL()
	if err != nil {
		return err
	}
	const what = windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	return windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, what, nil, nil, list, nil)
}
