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

// Check is one question of /healthz; its path is /healthz/NAME.
type Check struct {
	Name string
	// Check returns nil when all is well. It may be called concurrently and should end when ctx does.
	Check func(ctx context.Context) error
}

type checks []Check

// logTimeout is how long a flush of the log may take before logging counts as blocked.
const logTimeout = 2 * time.Second

var pingCheck = Check{Name: "ping", Check: func(context.Context) error { return nil }}

// newLogCheck notices a log that blocks, such as a file on a hung disk. However many ask, one flush is under way.
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

// serve runs every check but those of ?exclude=NAME. With ?verbose, or when one fails, it lists them; why one failed stays in the log,
// since /healthz is given to more people than the rest.
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
