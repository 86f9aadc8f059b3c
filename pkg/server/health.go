package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/klog/v2"
)

// Check is one check of /healthz; its path is /healthz/NAME.
type Check struct {
	Name string
	// Check returns nil when all is well. It may be called concurrently and should end when ctx does.
	Check func(ctx context.Context) error
}

type checks []Check

// logTimeout is how long a flush of the log may take before logging counts as blocked.
const logTimeout = 2 * time.Second

var pingCheck = Check{Name: "ping", Check: func(context.Context) error { return nil }}

// newLogCheck detects a log that blocks, such as a file on a hung disk. It runs only one flush at a time, however many clients ask.
func newLogCheck() Check {
	var flights singleflight.Group
	return Check{Name: "log", Check: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, logTimeout)
		defer cancel()
		select {
		case <-flights.DoChan("", func() (any, error) { klog.Flush(); return nil, nil }):
			return nil
		case <-ctx.Done():
			return errors.New("logging blocked")
		}
	}}
}

// install adds /healthz and one path per check.
func (c checks) install(mux *http.ServeMux) {
	mux.HandleFunc("/healthz", c.serve)
	for _, check := range c {
		mux.HandleFunc("/healthz/"+check.Name, func(w http.ResponseWriter, r *http.Request) {
			if err := check.Check(r.Context()); err != nil {
				http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
				return
			}
			plain(w, http.StatusOK, "ok")
		})
	}
}

// serve runs every check except those of ?exclude=NAME. With ?verbose, or if one fails, it lists them. The reason for a failure is only in the log,
// since more people can read /healthz than other paths.
func (c checks) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var list strings.Builder
	failed := false
	for _, check := range c {
		if slices.Contains(query["exclude"], check.Name) {
			fmt.Fprintf(&list, "[+]%s excluded: ok\n", check.Name)
			continue
		}
		if err := check.Check(r.Context()); err != nil {
			klog.V(2).InfoS("Health check failed", "check", check.Name, "err", err)
			fmt.Fprintf(&list, "[-]%s failed: reason withheld\n", check.Name)
			failed = true
			continue
		}
		fmt.Fprintf(&list, "[+]%s ok\n", check.Name)
	}
	switch {
	case failed:
		http.Error(w, list.String()+"healthz check failed", http.StatusInternalServerError)
	case query.Has("verbose"):
		plain(w, http.StatusOK, list.String()+"healthz check passed\n")
	default:
		plain(w, http.StatusOK, "ok")
	}
}
