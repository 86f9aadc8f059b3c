package volume

import (
	"io/fs"
	"os"

	sys "golang.org/x/sys/windows" // a test of this package has something else by its name
)

// openPath opens a file so that it can be examined.
const openPath = os.O_RDONLY

// newMounter returns nil: Windows has no tmpfs and needs no bind mounts here, every volume is a plain directory.
func newMounter() mounter { return nil }

// groupOf says that files here have no group of the Unix sort.
func groupOf(fs.FileInfo) (gid int64, known bool) { return 0, false }

// setAccess replaces the access list of a file or directory, and what its children inherit.
func setAccess(path, sddl string) error {
	descriptor, err := sys.SecurityDescriptorFromString(sddl)
	if err != nil {
		return err
	}
	list, _, err := descriptor.DACL()
	if err != nil {
		return err
	}
	const what = sys.DACL_SECURITY_INFORMATION | sys.PROTECTED_DACL_SECURITY_INFORMATION
	return sys.SetNamedSecurityInfo(path, sys.SE_FILE_OBJECT, what, nil, nil, list, nil)
}
