package volume

import (
	"io/fs"
	"os"
)

// openPath opens a file so that it can be examined.
const openPath = os.O_RDONLY

// newMounter returns nil: Windows has no tmpfs and needs no bind mounts here, every volume is a plain directory.
func newMounter() mounter { return nil }

// groupOf says that files here have no group of the Unix sort.
func groupOf(fs.FileInfo) (gid int64, known bool) { return 0, false }

// spaceOf takes a file's size for what it takes on disk.
func spaceOf(fi fs.FileInfo) space { return space{bytes: uint64(fi.Size())} }
