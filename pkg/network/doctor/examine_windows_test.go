package doctor

import (
	"testing"

	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/network"
)

// TestExamineRefused: what IP Helper refuses is said to be unread, and the rest is read.
func TestExamineRefused(t *testing.T) {
	t.Setenv("WINKUBE_REFUSE", "GetIfTable2Ex") // to the simulator of IP Helper: Windows itself refuses nothing on request
	if _, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil {
		t.Skip("this IP Helper refuses nothing on request")
	}
	s := Symptoms{Config: network.Config{Mode: network.Overlay}}
	if err := Examine(t.Context(), &s); err != nil || len(s.Unread) == 0 {
		t.Errorf("%v, unread %q", err, s.Unread)
	}
}
