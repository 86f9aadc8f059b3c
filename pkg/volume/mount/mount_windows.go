package mount

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

// OpenPath opens a file so that it can be examined.
const OpenPath = os.O_RDONLY

// System is Linked: Windows has no tmpfs and no bind mounts.
func System() Mounter { return Linked{SystemLinks()} }

type ntfs struct{}

// SystemLinks are the reparse points of this host that lead elsewhere: symbolic links, junctions and folders that a volume is mounted in.
func SystemLinks() Links { return ntfs{} }

func (ntfs) Read(path string) (string, bool, error) { return readLink(path) }

func (ntfs) Remove(path string) error {
	target, ok, err := readLink(path)
	if err != nil || !ok {
		return err
	}
	// The mount manager keeps a list of such folders.
	if strings.HasPrefix(target, `\\?\Volume{`) {
		folder, err := windows.UTF16PtrFromString(path + `\`)
		if err == nil {
			err = windows.DeleteVolumeMountPoint(folder)
		}
		if err != nil {
			return fmt.Errorf("cannot unmount %s from the folder %s: %w", target, path, err)
		}
		if _, ok, err = readLink(path); err != nil || !ok {
			return err
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove a link: %w", err)
	}
	return nil
}
