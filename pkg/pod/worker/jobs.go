package worker

import (
	"context"
	"slices"

	"github.com/winkube/winkube/pkg/pod/plan"
)

// job names a slow operation other than a step. At most one of each name runs at a time.
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

// jobs are a worker's slow operations other than steps, and the times of their retries.
type jobs struct {
	*core
	running map[job]bool
	retries map[job]plan.Retry
}

func newJobs(c *core) *jobs {
	return &jobs{core: c, running: map[job]bool{}, retries: map[job]plan.Retry{}}
}

// waits reports that the job failed and that it is too early to retry. It schedules the loop's next look at that time.
func (j *jobs) waits(name job) bool {
	r := j.retries[name]
	if !r.Waits(j.now()) {
		return false
	}
	j.lookAt(r.Until)
	return true
}

// retry records a failure: the next try is after a doubling back-off.
func (j *jobs) retry(name job) {
	r := j.retries[name].Again(j.now(), 0)
	j.retries[name] = r
	j.lookAt(r.Until)
}

// done forgets the job's failures.
func (j *jobs) done(name job) { delete(j.retries, name) }

// hurry makes the job's next try due now.
func (j *jobs) hurry(name job) {
	if r, failed := j.retries[name]; failed {
		j.retries[name] = r.Now()
	}
}

// idle reports that the job may run: it is not running and not waiting for a retry.
func (j *jobs) idle(name job) bool { return !j.running[name] && !j.waits(name) }

// run calls do in another goroutine unless the job is running or waiting. then gets the result, in the loop. An error is logged and do is
// retried.
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

// names lists the running jobs, sorted.
func (j *jobs) names() []string {
	var names []string
	for name := range j.running {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}
