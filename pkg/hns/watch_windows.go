package hns

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/winkube/winkube/pkg/wake"
)

// Service-wide notifications of HNS. Source: Microsoft, "Host Compute Network (HCN) service API", HcnRegisterServiceCallback and HCN_NOTIFICATIONS.
var (
	computeNetwork = windows.NewLazySystemDLL("computenetwork.dll")
	register       = computeNetwork.NewProc("HcnRegisterServiceCallback")
	unregister     = computeNetwork.NewProc("HcnUnregisterServiceCallback")
)

// serviceDisconnect is HcnNotificationServiceDisconnect: the service ended, and with it the subscription.
const serviceDisconnect = 0x01000000

// returnCheck is how often to check whether the service is back.
const returnCheck = time.Second

// Watch calls tell, which must not block, when HNS adds or removes networks, and when the service ends or returns,
// until ctx ends. The error wraps ErrOld if this Windows has no notifications.
func Watch(ctx context.Context, tell func()) error {
	if err := register.Find(); err != nil {
		return fmt.Errorf("cannot watch HNS: %w", ErrOld)
	}
	ended := wake.New()
	callback := windows.NewCallback(func(kind uint32, _, _, _ uintptr) uintptr {
		if kind == serviceDisconnect {
			ended.Send()
		}
		tell()
		return 0
	})
	go watch(ctx, callback, ended, tell) // ends with ctx, or with the process: a call into HNS cannot be interrupted
	return nil
}

// watch maintains a subscription, and renews it after each end of the service.
func watch(ctx context.Context, callback uintptr, ended <-chan struct{}, tell func()) {
	for ctx.Err() == nil {
		var handle uintptr
		result, _, _ := register.Call(callback, 0, uintptr(unsafe.Pointer(&handle)))
		if int32(result) < 0 {
			select {
			case <-time.After(returnCheck):
			case <-ctx.Done():
			}
			continue
		}
		tell() // for changes before the subscription
		select {
		case <-ended:
		case <-ctx.Done():
		}
		_, _, _ = unregister.Call(handle)
	}
}
