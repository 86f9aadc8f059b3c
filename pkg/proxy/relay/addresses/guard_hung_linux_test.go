package addresses

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/winkube/winkube/pkg/command"
)

// hungNFT is an nft that works, or blocks until its context ends.
type hungNFT struct {
	runs int
	well bool
}

func (h *hungNFT) Run(ctx context.Context, _ []byte, _ string, _ ...string) ([]byte, error) {
	if h.runs++; h.well {
		return nil, nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestHungNFT: an nft that hangs delays the relay for a few seconds once, not at each change. The rules are written
// when it works again, even if it has never worked before.
func TestHungNFT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nft := &hungNFT{}
		g := newGuard(command.Patient(nft, nftPatience, nftPause))
		g.generation = func() (uint32, error) { return 7, nil }
		set := func() error {
			return g.set(t.Context(), guarded{single: []netip.Addr{netip.MustParseAddr("10.96.0.1")}})
		}
		begin := time.Now()
		for range 100 {
			if err := set(); !errors.Is(err, command.ErrHung) || errors.Is(err, errNoGuard) {
				t.Fatalf("%v", err)
			}
		}
		if took := time.Since(begin); took > nftPatience || nft.runs != 1 {
			t.Errorf("100 changes took %s and ran nft %d times", took, nft.runs)
		}
		nft.well = true
		time.Sleep(nftPause)
		if err := set(); err != nil || nft.runs != 2 {
			t.Errorf("after the pause: %v, %d runs", err, nft.runs)
		}
	})
}
