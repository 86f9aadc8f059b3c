package daemon

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// protectDir creates the directory together with its access list, or replaces the list of an existing one.
func protectDir(dir string) (changed bool, err error) {
	descriptor, err := windows.SecurityDescriptorFromString(protectedDirectory)
	if err != nil {
		return false, err
	}
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return false, err
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: descriptor}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	err = windows.CreateDirectory(path, &attributes)
	if !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return err == nil, pathError(dir, err)
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return false, fmt.Errorf("%s is not a directory, or is a link to one: %w", dir, errors.Join(err, os.ErrInvalid))
	}
	if err := checkOwnerOf(dir); err != nil || protectedAlready(dir) {
		return false, err
	}
	return true, setDirectory(dir, descriptor)
}

func pathError(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot make directory %s: %w", path, err)
}

// protectedAlready compares the access list as text.
func protectedAlready(dir string) bool {
	const what = windows.OWNER_SECURITY_INFORMATION | windows.GROUP_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION
	have, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, what)
	return err == nil && have.String() == protectedDirectory
}

// setDirectory sets owner and access list, also for the directory's content.
func setDirectory(dir string, descriptor *windows.SECURITY_DESCRIPTOR) error {
	owner, _, err := descriptor.Owner()
	if err != nil {
		return err
	}
	list, _, err := descriptor.DACL()
	if err != nil {
		return err
	}
	const what = windows.OWNER_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	if err := windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, what, owner, nil, list, nil); err != nil {
		return fmt.Errorf("cannot set who may use %s: %w", dir, err)
	}
	return nil
}

func checkOwnerOf(path string) error {
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("cannot read who owns %s: %w", path, err)
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return fmt.Errorf("cannot read who owns %s: %w", path, err)
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("cannot read which account this is: %w", err)
	}
	return checkOwner(path, owner.String(), user.User.Sid.String())
}

// RemoveLater renames the file of a running program, and has Windows delete it at the next boot. The original name is free immediately: a program
// installed there meanwhile stays.
func RemoveLater(path string) (moved string, err error) {
	moved = fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Rename(path, moved); err != nil {
		return "", err
	}
	name, err := windows.UTF16PtrFromString(moved)
	if err != nil {
		return "", err
	}
	return moved, windows.MoveFileEx(name, nil, windows.MOVEFILE_DELAY_UNTIL_REBOOT)
}
