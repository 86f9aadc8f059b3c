package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// recordFile holds the results of all runs, below _output/conformance.
const recordFile = "record.json"

// record is the last outcome of every test, by the engine that the kubelet saw (plan.Engine).
type record map[string]*results

type results struct {
	Runs  []pastRun
	Tests map[string]dated
}

// pastRun is the summary of a run.
type pastRun struct {
	When      time.Time
	Took      time.Duration
	Commit    string
	Selection string
	Count     string // in words
}

type dated struct {
	outcome
	Run time.Time
}

func loadRecord(dir string) (record, error) {
	rec := record{}
	if err := readJSON(filepath.Join(dir, recordFile), &rec); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the results of former runs: %w", err)
	}
	return rec, nil
}

// add records a run. Tests without a verdict keep their previous one.
func (rec record) add(r *report) {
	all := rec[r.plan.Engine]
	if all == nil {
		all = &results{Tests: map[string]dated{}}
		rec[r.plan.Engine] = all
	}
	for _, run := range all.Runs {
		if run.When.Equal(r.when) {
			return
		}
	}
	for _, one := range r.outcomes {
		if _, known := all.Tests[one.Name]; one.State == unreached && known {
			continue
		}
		all.Tests[one.Name] = dated{one, r.when}
	}
	all.Runs = append(all.Runs, pastRun{r.when, r.took, r.plan.Commit, r.plan.Selection,
		fmt.Sprintf("%d passed, %d failed", len(having(r.outcomes, passed)), len(having(r.outcomes, failed)))})
}

func (rec record) save(dir string) error {
	data, err := json.MarshalIndent(rec, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, recordFile), data, 0o644)
}
