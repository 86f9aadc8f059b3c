package command

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// family is a program and its descendants: a job object, which ends when its last handle is closed, so at the latest with this process.
type family struct{ job windows.Handle }

func newFamily(string) (*family, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot make a job object: %w", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err != nil {
		_ = windows.CloseHandle(job)
		return nil, fmt.Errorf("cannot limit a job object: %w", err)
	}
	return &family{job}, nil
}

// adopt adds a process. An exited one is skipped: Windows refuses or no longer knows it.
func (f *family) adopt(process *os.Process) error {
	handle, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE|windows.SYNCHRONIZE, false, uint32(process.Pid))
	if err != nil {
		return nil //nolint:nilerr // it has ended already
	}
	defer windows.CloseHandle(handle)
	err = windows.AssignProcessToJobObject(f.job, handle)
	if ended, _ := windows.WaitForSingleObject(handle, 0); err != nil && ended != windows.WAIT_OBJECT_0 {
		return fmt.Errorf("cannot put process %d into a job object: %w", process.Pid, err)
	}
	return nil
}

func (f *family) end() error { return windows.TerminateJobObject(f.job, 1) }

func (f *family) close() { _ = windows.CloseHandle(f.job) }

// EndFamily does nothing on Windows: a program's job object ended with the process that started it.
func EndFamily(string) error { return nil }
