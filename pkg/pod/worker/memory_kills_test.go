package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/pod"
)

// TestMemoryKills: each line is an observation: the kernel's count (- for none), then the containers as id:exit code, with ! if the engine reports
// OOMKilled. It yields the containers that are OOMKilled.
func TestMemoryKills(t *testing.T) {
	for name, lines := range map[string]string{
		"the engine does not report it":   "0 a > \n 1 a:137 > a \n 1 a:137 b > a \n 1 b >",
		"it does":                         "0 a > \n 1 a:137! > a \n 1 a:137! b > a \n 1 a:137! b:137 > a",
		"killed otherwise":                "0 a > \n 0 a:137 > ",
		"ended by itself":                 "0 a > \n 1 a:1 > \n 1 a:1 b > ",
		"two containers, one kill each":   "0 a b > \n 1 a:137 b > a \n 2 a:137 b:137 > a b",
		"no count":                        "- a > \n - a:137 > ",
		"killed before the agent started": "3 a:137 b > \n 3 a:137 b:137 > \n 4 a:137 b:137 c > \n 4 a:137 b:137 c:137 > c",
		"a new cgroup":                    "5 a > \n 0 a:137 > \n 0 b > \n 1 b:137 > b",
	} {
		t.Run(name, func(t *testing.T) {
			var k memoryKills
			var e endings
			for line := range strings.SplitSeq(lines, "\n") {
				given, want, _ := strings.Cut(line, ">")
				fields := strings.Fields(given)
				read := func() (n uint64, known bool) {
					_, err := fmt.Sscan(fields[0], &n)
					return n, err == nil
				}
				var list []pod.Container
				for _, field := range fields[1:] {
					id, code, exited := strings.Cut(field, ":")
					c := pod.Container{ID: id, State: pod.Running}
					if exited {
						c.State = pod.Exited
						code, c.OOMKilled = strings.CutSuffix(code, "!")
						if _, err := fmt.Sscan(code, &c.ExitCode); err != nil {
							t.Fatal(err)
						}
					}
					list = append(list, c)
				}
				var got []string
				for _, c := range k.mark(list, e.take(pod.Observed{Containers: list}), read) {
					if c.OOMKilled {
						got = append(got, c.ID)
					}
				}
				if strings.Join(got, " ") != strings.TrimSpace(want) {
					t.Errorf("%q: OOMKilled are %q", line, got)
				}
			}
		})
	}
}
