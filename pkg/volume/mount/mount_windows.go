package mount

import "os"

// OpenPath opens a file so that it can be examined.
const OpenPath = os.O_RDONLY

// System returns None: Windows has no tmpfs and needs no bind mounts here, every volume is a plain directory.
func System() Mounter { return None{} }
