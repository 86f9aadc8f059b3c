package csidriver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Lines of calls.log beside those of calls.
const (
	started    = "started"        // a driver begins
	registered = "registered"     // the kubelet has registered it
	killed     = "kubelet killed" // written by the test: no one waits for the calls that are under way
)

// KubeletKilled notes in calls.log that the kubelet does not live any more. Call it before the next one starts.
func (o Outside) KubeletKilled() error {
	file, err := os.OpenFile(filepath.Join(o.Data, "calls.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(file, killed); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// Registered reports whether the kubelet has registered the driver since either last started. Kills of the kubelet count if
// KubeletKilled noted them.
func (o Outside) Registered() (bool, error) {
	lines, err := o.Calls()
	for _, line := range slices.Backward(lines) {
		switch line {
		case registered:
			return true, err
		case started, killed:
			return false, err
		}
	}
	return false, err
}

// UnderWay reports whether the driver has a call of a method that has not ended.
func (o Outside) UnderWay(method string) (bool, error) {
	lines, err := o.Calls()
	calls := 0
	for _, line := range lines {
		switch {
		case line == started:
			calls = 0
		case strings.HasPrefix(line, "begin "+method+" "):
			calls++
		case strings.HasPrefix(line, "end "+method+" "):
			calls--
		}
	}
	return calls > 0, err
}

// Garbage lists directories of volumes and snapshots that do not exist: what an interrupted removal has left.
func (o Outside) Garbage() (out []string, err error) {
	s := &store{o.Data}
	for _, kind := range []string{volumes, snapshots} {
		entries, err := os.ReadDir(filepath.Join(o.Data, kind))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for _, entry := range entries {
			if _, err := os.Stat(s.path(kind, entry.Name(), "about.json")); os.IsNotExist(err) {
				out = append(out, filepath.Join(kind, entry.Name()))
			}
		}
	}
	return out, nil
}

// Methods are those that change where a volume is on a node, in the order of a volume's life.
var Methods = []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}

// Order reads the lines of calls.log and returns what a kubelet has done wrong by the CSI specification, and what it has
// not undone at the end. A call that a kill interrupted, or that failed, may have done its work or not: it must be
// repeated, or undone. It is pure.
//
//	stage OK -> publish at each target -> unpublish OK at each -> unstage; one call at a time for a volume
func Order(lines []string) (wrong, left []string) {
	all := map[string]*course{}
	for i, line := range lines {
		switch line {
		case started:
			for _, c := range all {
				c.calls = nil
			}
		case killed:
			for _, c := range all {
				for j := range c.calls {
					c.calls[j].forgotten = true
				}
			}
		}
		words := strings.Fields(line)
		if len(words) < 4 || !slices.Contains(Methods, words[1]) {
			continue
		}
		c := all[words[2]]
		if c == nil {
			c = &course{inline: strings.HasPrefix(words[2], inlinePrefix), targets: map[string]bool{}}
			all[words[2]] = c
		}
		var problem string
		if words[0] == "begin" {
			problem = c.begin(call{method: words[1], path: words[3]})
		} else {
			problem = c.end(words[1], words[3] == "OK")
		}
		if problem != "" {
			wrong = append(wrong, fmt.Sprintf("line %d, volume %s: %s", i+1, words[2], problem))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		for _, target := range slices.Sorted(maps.Keys(all[id].targets)) {
			left = append(left, fmt.Sprintf("volume %s is published at %s", id, target))
		}
		if all[id].staged {
			left = append(left, fmt.Sprintf("volume %s is staged", id))
		}
	}
	return wrong, left
}

// inlinePrefix begins the ids that kubelets give inline volumes. Those of idOf have no such letters.
const inlinePrefix = "csi-"

// course is what is known of one volume on a node.
type course struct {
	inline  bool
	usable  bool            // a stage has ended well, and nothing since may have undone it
	staged  bool            // or may be
	targets map[string]bool // where it is published, or may be
	calls   []call          // under way
}

type call struct {
	method, path string
	forgotten    bool // the kubelet that waited for it is dead
}

// begin notes a call. It returns what is wrong with it; "": nothing.
func (c *course) begin(next call) (problem string) {
	for _, other := range c.calls {
		if !other.forgotten {
			problem = fmt.Sprintf("%s begins while %s is under way", next.method, other.method)
		}
	}
	c.calls = append(c.calls, next)
	switch next.method {
	case Methods[0]:
		c.staged = true
	case Methods[1]:
		if !c.usable && !c.inline {
			problem = "published at " + next.path + " although no stage has succeeded"
		}
		c.targets[next.path] = true
	case Methods[3]:
		if len(c.targets) > 0 {
			problem = fmt.Sprintf("unstaged although it may be published at %q", slices.Sorted(maps.Keys(c.targets)))
		}
		c.usable = false
	}
	return problem
}

// end notes the end of a call, of a dead kubelet first.
func (c *course) end(method string, ok bool) (problem string) {
	same := func(forgotten bool) int {
		return slices.IndexFunc(c.calls, func(have call) bool { return have.method == method && have.forgotten == forgotten })
	}
	at := same(true)
	if at < 0 {
		at = same(false)
	}
	if at < 0 {
		return "end of " + method + ", which did not begin"
	}
	ended := c.calls[at]
	c.calls = slices.Delete(c.calls, at, at+1)
	if !ok {
		return ""
	}
	switch method {
	case Methods[0]:
		c.usable = true
	case Methods[2]:
		delete(c.targets, ended.path)
	case Methods[3]:
		c.staged = false
	}
	return ""
}
