package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The sample image's "count 200000 100" writes several times the size of one log file.
const (
	countLines = 200_000
	countArgs  = "count 200000 100"
)

// logsWith reads a container's log with options.
func (s *space) logsWith(pod string, options v1.PodLogOptions) string {
	s.Helper()
	data, err := client.CoreV1().Pods(s.name).GetLogs(pod, &options).DoRaw(context.Background())
	if err != nil {
		s.Fatalf("logs of %s with %+v: %v", pod, options, err)
	}
	return string(data)
}

// ended waits until a pod has completed.
func (s *space) ended(pod string, want v1.PodPhase, patience time.Duration) *v1.Pod {
	s.Helper()
	var found *v1.Pod
	s.eventually(patience, "pod "+pod+" "+string(want), func(context.Context) error {
		if found = s.get(pod); found.Status.Phase != want {
			return fmt.Errorf("it is %s", found.Status.Phase)
		}
		return nil
	})
	return found
}

// countLine returns an error if a line of count is wrong.
func countLine(line string, want int) error {
	text, ends := strings.CutSuffix(line, "|\n")
	n, err := strconv.Atoi(strings.TrimRight(text, " "))
	width := 100
	if want%10_000 == 9999 {
		width = 40_000
	}
	if err != nil || !ends || n != want || len(text) != width {
		return fmt.Errorf("want line %d of %d bytes, have %.40q of %d", want, width, line, len(text))
	}
	return nil
}

// TestLogsFollow follows a pod that writes as fast as it can across rotations, and then reads the log with all other
// options.
func TestLogsFollow(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	pod := s.pod("count", node, strings.Fields(countArgs)...)
	pod.Spec.RestartPolicy = v1.RestartPolicyNever
	s.create(pod)
	var follower io.ReadCloser
	s.eventually(60*time.Second, "a log to follow", func(context.Context) (err error) {
		if s.get("count").Spec.NodeName == "" {
			return errors.New("it has no node") // the API server returns an empty log for such a pod
		}
		follower, err = client.CoreV1().Pods(s.name).GetLogs("count", &v1.PodLogOptions{Follow: true}).Stream(t.Context())
		return err
	})
	defer follower.Close()
	begin, size := time.Now(), 0
	in := bufio.NewReaderSize(follower, 1<<20)
	next := 0
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			break
		}
		s.must(err)
		s.must(countLine(line, next))
		next++
		size += len(line)
	}
	if next != countLines {
		t.Errorf("the log ended after %d lines, want %d", next, countLines)
	}
	t.Logf("followed %d lines, %d bytes, none lost or repeated, in %.1f s", next, size, time.Since(begin).Seconds())

	files, err := filepath.Glob(node.Dir("log", "pods", s.name+"_count_*", "main", "0.log"))
	s.must(err)
	if len(files) != 1 {
		t.Fatalf("links to the log: %q", files)
	}
	target, err := os.Readlink(files[0])
	s.must(err)
	rotated, err := filepath.Glob(target + ".*")
	s.must(err)
	if len(rotated) < 2 {
		t.Errorf("this test needs several rotations, have %q", rotated)
	}

	lines := strings.SplitAfter(s.logsWith("count", v1.PodLogOptions{TailLines: new(int64(150_000))}), "\n")
	for i, line := range lines[:len(lines)-1] {
		s.must(countLine(line, countLines-150_000+i))
	}
	if len(lines)-1 != 150_000 {
		t.Errorf("the last 150000 lines are %d", len(lines)-1)
	}
	if got := s.logsWith("count", v1.PodLogOptions{LimitBytes: new(int64(12_345))}); len(got) != 12_345 {
		t.Errorf("12345 bytes are %d", len(got))
	}
	stamped := s.logsWith("count", v1.PodLogOptions{TailLines: new(int64(1)), Timestamps: true}) // a long line
	at, rest, _ := strings.Cut(stamped, " ")
	if _, err := time.Parse(time.RFC3339Nano, at); err != nil || countLine(rest, countLines-1) != nil {
		t.Errorf("a long line with time: %.60q (%d bytes)", stamped, len(stamped))
	}
	if got := s.logsWith("count", v1.PodLogOptions{SinceTime: &metav1.Time{Time: time.Now().Add(time.Hour)}}); got != "" {
		t.Errorf("since an hour from now: %.60q", got)
	}
	// The API server forwards the stream option only with an alpha feature, so ask the kubelet.
	for stream, want := range map[string]int{v1.LogStreamStderr: 0, v1.LogStreamStdout: 50} {
		data, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node.Name, "proxy/containerLogs", s.name, "count", "main").
			Param("stream", stream).Param("limitBytes", "50").DoRaw(t.Context())
		if err != nil || len(data) != want {
			t.Errorf("%s: %.60q, %v", stream, data, err)
		}
	}
}

// TestLogsOf reads the logs of containers that have not started, were restarted or have ended, and of init containers.
// It also finds them where tools look for them.
func TestLogsOf(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	pod := s.pod("again", node, "shell", "-c", "hostname; env; sleep 1")
	pod.Spec.InitContainers = []v1.Container{{Name: "first", Image: pod.Spec.Containers[0].Image, Args: []string{"echoargs", "made", "ready"}}}
	s.create(pod)
	missing := s.pod("missing", node, "sleep")
	missing.Spec.Containers[0].Image = "winkube/none:1"
	s.create(missing)
	s.eventually(60*time.Second, "a restart", func(context.Context) error {
		if st := s.get("again").Status.ContainerStatuses; len(st) != 1 || st[0].RestartCount < 1 || st[0].LastTerminationState.Terminated == nil {
			return fmt.Errorf("it is %+v", st)
		}
		return nil
	})
	if got := s.logsWith("again", v1.PodLogOptions{Previous: true, LimitBytes: new(int64(6))}); got != "again\n" {
		t.Errorf("previous: %q", got)
	}
	if got := s.logsWith("again", v1.PodLogOptions{Container: "first"}); got != "made ready\n" {
		t.Errorf("init container: %q", got)
	}
	for options, want := range map[*v1.PodLogOptions]string{
		{Container: "first", Previous: true}: `previous terminated container "first" in pod "again" not found`,
	} {
		_, err := client.CoreV1().Pods(s.name).GetLogs("again", options).Stream(t.Context()) // DoRaw omits the server's message
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", options, err, want)
		}
	}
	s.eventually(2*time.Minute, "why there is no log", func(ctx context.Context) error {
		_, err := client.CoreV1().Pods(s.name).GetLogs("missing", &v1.PodLogOptions{}).Stream(ctx)
		if want := `container "main" in pod "missing" is waiting to start: trying and failing to pull image`; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%w, want %s", err, want)
		}
		return nil
	})

	uid := string(s.get("again").UID)
	link := func() []string {
		first, err := filepath.Glob(node.Dir("log", "pods", s.name+"_again_"+uid, "*", "*.log"))
		s.must(err)
		flat, err := filepath.Glob(node.Dir("log", "containers", "again_"+s.name+"_*.log"))
		s.must(err)
		return append(first, flat...)
	}
	found := link()
	if len(found) < 4 {
		t.Errorf("links to logs: %q", found)
	}
	for _, name := range found {
		if data, err := os.ReadFile(name); err != nil || len(data) > 0 && !strings.HasPrefix(string(data), `{"log":"`) {
			t.Errorf("%s: %.40q, %v", name, data, err)
		}
	}
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "again", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	s.eventually(time.Minute, "no links of the removed pod", func(context.Context) error {
		if left := link(); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}
