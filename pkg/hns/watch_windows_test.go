package hns

import (
	"context"
	"errors"
	"testing"

	"github.com/Microsoft/hcsshim/hcn"
)

// TestWatch: a new subscription calls tell, then again for a new network.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan struct{}, 10)
	err := Watch(ctx, func() { told <- struct{}{} })
	if _, noHNS := hcn.GetGlobals(); noHNS != nil {
		if err == nil || !errors.Is(err, ErrOld) {
			t.Errorf("without HNS: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	<-told
	made, err := (&hcn.HostComputeNetwork{Name: "watch-test", Type: hcn.Private, SchemaVersion: hcn.V2SchemaVersion()}).Create()
	if err != nil {
		t.Fatal(err)
	}
	<-told
	if err := made.Delete(); err != nil {
		t.Error(err)
	}
	<-told
}
