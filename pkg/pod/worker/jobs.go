package worker

import (
	"context"
	"slices"

	"github.com/winkube/winkube/pkg/pod/plan"
)

// job names a slow thing beside the steps. At most one of a name runs at a time.
type job string

const (
	observing      job = "observe"
	writingStatus  job = "status"
	mirroring      job = "mirror"
	refreshing     job = "volumes"
	removingCgroup job = "cgroup"
	cleaning       job = "clean"
	deletingObject job = "delete"
)

// jobs are a worker's slow things beside the steps, and when those that failed are tried again.
type jobs struct {
	*core
	running map[job]bool
	retries map[job]plan.Retry
}

func newJobs(c *core) *jobs {
	return &jobs{core: c, running: map[job]bool{}, retries: map[job]plan.Retry{}}
}

// waits says that the job failed and that it is too early for the next try; the loop looks again when it no longer is.
func (j *jobs) waits(name job) bool {
	r := j.retries[name]
	if !r.Waits(j.now()) {
		return false
	}
	j.lookAt(r.Until)
	return true
}

// retry notes a failure: the next try is after a doubling back-off.
func (j *jobs) retry(name job) {
	r := j.retries[name].Again(j.now(), 0)
	j.retries[name] = r
	j.lookAt(r.Until)
}

// done forgets the job's failures.
func (j *jobs) done(name job) { delete(j.retries, name) }

// hurry forgets how long the job would wait, so that the next try is now.
func (j *jobs) hurry(name job) {
	if r, failed := j.retries[name]; failed {
		j.retries[name] = r.Now()
	}
}

// idle says that the job may run: it does not, and waits for nothing.
func (j *jobs) idle(name job) bool { return !j.running[name] && !j.waits(name) }

// run has do called beside the loop unless the job runs already or waits; then gets its result, in the loop. An error is logged and tried
// again.
func (j *jobs) run(name job, do func(ctx context.Context) error, then func(err error)) {
	if !j.idle(name) {
		return
	}
	j.running[name] = true
	j.do(j.ctx, do, func(err error) {
		delete(j.running, name)
		if err == nil {
			j.done(name)
		} else if j.ctx.Err() == nil {
			j.log(1, "Will try again", "what", name, "err", err)
			j.retry(name)
		}
		then(err)
	})
}

// names are those that run, sorted.
func (j *jobs) names() []string {
	var names []string
	for name := range j.running {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}
