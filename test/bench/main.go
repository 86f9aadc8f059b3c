// Command bench measures the kubelet on the two-node cluster beside the bare engine in the same run, and prints ratios.
//
//	lab cluster -> bare engine, pods one at a time, pods at once, idle, deletion -> table
//
// It is no test: nothing fails because a figure is bad.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

const (
	burstSize = 40
	oneByOne  = 20
	idleTime  = 60 * time.Second
)

type durations []time.Duration

// at returns the p-th percentile, p from 0 to 1.
func (d durations) at(p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root, err := lab.FindRoot()
	if err != nil {
		return err
	}
	cluster := lab.New(root, os.Stdout)
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	node := cluster.Nodes[0]
	b := &bench{
		engine: newEngine(node.EngineSocket(), lab.PauseImage, lab.SampleImage),
		pods:   &pods{client: client, node: node.Name, image: lab.SampleImage},
		pid:    func() (int, bool) { return node.Process("kubelet").PID() },
	}
	if _, err := b.pods.remove(ctx); err != nil {
		return err
	}
	return b.run(ctx)
}

// bench holds the two sides of one run.
type bench struct {
	engine *engine
	pods   *pods
	pid    func() (int, bool)
}

func (b *bench) run(ctx context.Context) error {
	fmt.Printf("\n%-34s %14s %14s %8s\n", "", "bare engine", "winkube", "ratio")
	if err := b.one(ctx); err != nil {
		return err
	}
	return b.many(ctx)
}

// one measures pods that are alone.
func (b *bench) one(ctx context.Context) error {
	bare, err := b.engine.oneByOne(ctx, "winkube", oneByOne)
	if err != nil {
		return err
	}
	var ours, gone durations
	for i := range oneByOne {
		ready, err := b.pods.run(ctx, fmt.Sprintf("one-%d", i), 1)
		if err != nil {
			return err
		}
		took, err := b.pods.remove(ctx)
		if err != nil {
			return err
		}
		ours, gone = append(ours, ready...), append(gone, took)
	}
	row("one at a time, create to Ready p50", bare.at(0.5), ours.at(0.5))
	row("one at a time, create to Ready p99", bare.at(0.99), ours.at(0.99))
	row("one at a time, delete to gone p50", 0, gone.at(0.5))
	return nil
}

// many measures a burst, the agent's cost for it, and what it costs to keep it.
func (b *bench) many(ctx context.Context) error {
	bare, err := b.engine.burst(ctx, "winkube", burstSize)
	if err != nil {
		return err
	}
	pid, ok := b.pid()
	if !ok {
		return fmt.Errorf("the kubelet does not run")
	}
	before, err := cpuOf(pid)
	if err != nil {
		return err
	}
	ours, err := b.pods.run(ctx, "burst", burstSize)
	if err != nil {
		return err
	}
	after, err := cpuOf(pid)
	if err != nil {
		return err
	}
	row(fmt.Sprintf("%d at once, create to Ready p50", burstSize), bare.at(0.5), ours.at(0.5))
	row(fmt.Sprintf("%d at once, create to Ready p99", burstSize), bare.at(0.99), ours.at(0.99))
	row(fmt.Sprintf("%d at once, all Ready", burstSize), bare.at(1), ours.at(1))
	fmt.Printf("%-34s %14s %12.2f s\n", "kubelet CPU for the burst", "", (after - before).Seconds())
	if err := b.idle(ctx, pid); err != nil {
		return err
	}
	gone, err := b.pods.remove(ctx)
	if err != nil {
		return err
	}
	row(fmt.Sprintf("%d at once, all gone (grace 1 s)", burstSize), 0, gone)
	return nil
}

// idle measures the kubelet while the burst's pods do nothing.
func (b *bench) idle(ctx context.Context, pid int) error {
	before, err := cpuOf(pid)
	if err != nil {
		return err
	}
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := cpuOf(pid)
	if err != nil {
		return err
	}
	rss, err := rssOf(pid)
	if err != nil {
		return err
	}
	fmt.Printf("%-34s %14s %12.2f %%\n", fmt.Sprintf("kubelet CPU idle, %d pods", burstSize), "", 100*(after-before).Seconds()/idleTime.Seconds())
	fmt.Printf("%-34s %14s %10.0f MiB\n", fmt.Sprintf("kubelet RSS, %d pods", burstSize), "", float64(rss)/(1<<20))
	return nil
}

// row prints a figure beside the bare engine's; 0: there is none.
func row(name string, bare, ours time.Duration) {
	if bare == 0 {
		fmt.Printf("%-34s %14s %11.0f ms\n", name, "", float64(ours.Microseconds())/1000)
		return
	}
	fmt.Printf("%-34s %11.0f ms %11.0f ms %8.2f\n", name, float64(bare.Microseconds())/1000, float64(ours.Microseconds())/1000, float64(ours)/float64(bare))
}
