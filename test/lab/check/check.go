// Package check tests from outside whether a cluster does what its samples promise. It prints the table at the end of
// `make up`.
//
//	samples (build/samples) --apply--> cluster --> checks, each a call of a user's tool or from a host --> table
package check

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// patience is how long a failing check is repeated: programs of a new pod start, endpoints propagate.
const patience = 2 * time.Minute

// Check is one row of the table.
type Check struct {
	Name string
	Node string // the node that the check runs on or is about; "" if none
	// Do may be called repeatedly; it returns what it saw.
	Do func(ctx context.Context) (seen string, err error)
}

// Result is the result of a Check.
type Result struct {
	Check
	Seen string
	Err  error
	Took time.Duration
}

// Run runs all checks on the samples and prints their table to out. It returns an error if a check fails.
func Run(ctx context.Context, c *lab.Cluster, out io.Writer) error {
	results, err := Results(ctx, c)
	if err != nil {
		return err
	}
	return Print(out, results)
}

// Results waits until the samples are ready and runs all checks. The error concerns the preparation, not a check.
func Results(ctx context.Context, c *lab.Cluster) ([]Result, error) {
	s, err := newSuite(c)
	if err != nil {
		return nil, err
	}
	results := runAll(ctx, s.ready())
	for _, result := range results {
		if result.Err != nil {
			return results, nil // the other checks would only repeat this failure
		}
	}
	checks, err := s.checks(ctx)
	if err != nil {
		return nil, err
	}
	return append(results, runAll(ctx, checks)...), nil
}

// runAll runs checks, a few at a time, and returns their results in order.
func runAll(ctx context.Context, checks []Check) []Result {
	results := make([]Result, len(checks))
	slots := make(chan struct{}, 4)
	var group sync.WaitGroup
	for i, check := range checks {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = run(ctx, check)
		})
	}
	group.Wait()
	return results
}

func run(ctx context.Context, check Check) Result {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	result := Result{Check: check}
	for {
		attempt, end := context.WithTimeout(ctx, 30*time.Second)
		seen, err := check.Do(attempt)
		end()
		if ctx.Err() == nil || err == nil || result.Err == nil {
			result.Seen, result.Err = seen, err // the last real failure says more than the timeout
		}
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
			continue
		}
		break
	}
	result.Took = time.Since(begin)
	return result
}

// Print prints the table; the error counts the failed checks.
func Print(out io.Writer, results []Result) error {
	failed := 0
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHECK\tNODE\tRESULT\tTIME\tSEEN")
	for _, result := range results {
		state, seen := "ok", result.Seen
		if result.Err != nil {
			failed++
			state, seen = "FAILED", result.Err.Error()
		}
		seen = strings.Join(strings.Fields(seen), " ")
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f s\t%s\n", result.Name, result.Node, state, result.Took.Seconds(), seen)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed; go run ./hack/cluster status lists the logs, go run ./hack/cluster check runs the checks again", failed, len(results))
	}
	fmt.Fprintf(out, "%d checks passed\n", len(results))
	return nil
}
