package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// protectedDirectory is the SDDL for a directory of programs that run as SYSTEM, and of secrets: Administrators own it, SYSTEM and Administrators
// have full access, no other account has any. It inherits nothing, and its content inherits this. By default, Users may read and create files
// directly below C:\. (Microsoft, "Security Descriptor String Format")
const protectedDirectory = "O:BAG:BAD:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// trustedOwners are the Windows accounts whose files a service may run: SYSTEM, Administrators and TrustedInstaller. (Microsoft, "Well-known SIDs")
var trustedOwners = []string{"S-1-5-18", "S-1-5-32-544", "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"}

// checkOwner refuses an owner other than trustedOwners and the account that runs this program. An owner may change the access list at any time.
func checkOwner(path, owner string, own ...string) error {
	if slices.Contains(trustedOwners, owner) || slices.Contains(own, owner) {
		return nil
	}
	return fmt.Errorf(`%s belongs to account %s, which could change it at any time; want SYSTEM or Administrators: check what it is, then remove it or run: icacls "%[1]s" /setowner *S-1-5-32-544`,
		path, owner)
}

// ProtectDir creates or protects dir so that only the administrator and the system can create files in it (root on Linux); on Windows only they can
// read files either. It refuses a directory that another account owns, which is unsafe for secrets. changed is false if it was already protected.
func ProtectDir(dir string) (changed bool, err error) {
	if dir != filepath.Clean(dir) || !filepath.IsAbs(dir) {
		return false, fmt.Errorf("directory %q: want an absolute path", dir)
	}
	if parent := filepath.Dir(dir); !exists(parent) {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return false, err
		}
	}
	return protectDir(dir)
}

// CheckOwner refuses a file or directory that is not owned by the administrator or the system. A missing file is not an error.
func CheckOwner(path string) error {
	err := checkOwnerOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// CopyProgram replaces the program to, which may run, by from; the old one stays as to.old for a rollback. changed is false if they are identical. It
// uses no file that others have put next to to.
func CopyProgram(from, to string) (changed bool, err error) {
	if same, err := sameContent(from, to); err != nil || same {
		return false, errors.Join(err, CheckOwner(to))
	}
	if err := copyProgram(from, to+newSuffix); err != nil {
		return false, err
	}
	return true, replace(to)
}

// copyProgram writes a complete program to disk, or nothing. It removes an existing file instead of writing to it, since another account may have
// created it and may have it open.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		_ = os.Remove(to)
	}
	return err
}
