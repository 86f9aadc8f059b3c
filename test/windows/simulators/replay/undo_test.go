package replay

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/record"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// noForwarding requires that no adapter forwards, as on a fresh host: a recording switches forwarding off again.
func noForwarding(t *testing.T, p *rig.Prefix, w *sim.World, rec record.Recording) {
	t.Helper()
	switched := false
	for _, e := range rec.Exchanges {
		switched = switched || e.Call == "SetIpInterfaceEntry" && strings.Contains(string(e.In[0]), `"Forwarding":true`)
	}
	if !switched {
		t.Error("the recording did not switch forwarding on")
	}
	interfaces, _ := w.IPHelper.Snapshot()
	for _, i := range interfaces {
		if i.V4.Forwarding || i.V6.Forwarding {
			t.Errorf("forwarding is left on at %q", i.Name)
		}
	}
	if _, err := os.Stat(p.Path(recorded + ".forwarding")); !os.IsNotExist(err) {
		t.Errorf("the note of forwarding: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestTakenBack: a recording undoes its changes to the host when a step fails and when it is interrupted.
func TestTakenBack(t *testing.T) {
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("needs Wine: run make test-windows, or set WINKUBE_WINE=1")
	}
	exe := kubelet(t)
	for _, test := range []struct {
		name, wants string
		create      func(w http.ResponseWriter, r *http.Request, interrupt func())
	}{
		{"failed", "no space left", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			http.Error(w, `{"message":"no space left"}`, http.StatusInternalServerError)
		}},
		{"interrupted", "context canceled", func(_ http.ResponseWriter, r *http.Request, interrupt func()) {
			_, _ = io.Copy(io.Discard, r.Body) // a server only notices that its client has gone after it has read the request
			interrupt()
			<-r.Context().Done()
		}},
	} {
		for _, build := range rig.Wanted(20348) {
			t.Run(test.name, func(t *testing.T) {
				p := rig.Test(t, build)
				w := world(t, p)
				e := simulatedEngine(t, p, w)
				before := w.HNS.String()
				interrupt := make(chan struct{}, 1)
				server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/containers/create") {
						test.create(out, r, func() { interrupt <- struct{}{} })
						return
					}
					e.ServeHTTP(out, r)
				}))
				t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
				ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
				defer cancel()
				cmd := p.Command(ctx, exe, recordWords(t, server.URL)...)
				var said, logged strings.Builder
				cmd.Stdout, cmd.Stderr = &said, &logged
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				var failed error
				select {
				case <-interrupt:
					if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
						t.Error(err)
					}
					failed = <-ended
				case failed = <-ended:
				}
				rec := read(t, p.Path(recorded))
				if failed == nil || !strings.Contains(strings.Join(rec.Header.Failed, "\n"), test.wants) {
					t.Errorf("%v; failed are %q, want %q; it said\n%s\n%s", failed, rec.Header.Failed, test.wants, &said, &logged)
				}
				if got := w.HNS.String(); got != before {
					t.Errorf("left in HNS:\n%s\nbefore:\n%s", got, before)
				}
				noForwarding(t, p, w, rec)
			})
		}
	}
}
