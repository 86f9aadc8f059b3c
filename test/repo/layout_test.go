package repo_test

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// paired are the packages that may have files for one system, in pairs.
var paired = []string{"pkg/cri", "pkg/command", "pkg/host", "pkg/daemon", "pkg/hns", "pkg/hcs", "pkg/cgroup", "pkg/disk", "pkg/docker", "pkg/volume", "pkg/network", "pkg/routes", "pkg/proxy/relay", "pkg/proxy/connect", "pkg/proxy/packets", "pkg/iptables", "pkg/record", "pkg/otherproxy", "cmd/kubelet/app", "cmd/kube-proxy/app", "test/bench", "test/csidriver"}

// lonely are files for one system whose counterpart would be empty.
var lonely = map[string]string{
	"pkg/hns/client_windows.go":   "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/bridge_windows.go":   "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/policies_windows.go": "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/listing_windows.go":  "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/overlay_windows.go":  "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/pods_windows.go":     "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/remove_windows.go":   "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/survey_windows.go":   "Linux has no HNS, and nothing on Linux asks for one",
	"pkg/hns/watch_windows.go":    "Linux has no HNS, and nothing on Linux asks for one",

	"pkg/record/hcn_windows.go":      "a part of tap_windows.go; Linux has no HNS",
	"pkg/record/iphelper_windows.go": "a part of tap_windows.go; Linux has no IP Helper",

	"pkg/network/hostnet/uplink_windows.go": "a bridge of Linux takes nothing from the host's interfaces",

	"pkg/daemon/logind_linux.go": "Windows' service manager reports a shutdown by itself",

	"pkg/proxy/relay/epoll/call_linux.go":        relayEpoll,
	"pkg/proxy/relay/epoll/client_linux.go":      relayEpoll,
	"pkg/proxy/relay/epoll/end_linux.go":         relayEpoll,
	"pkg/proxy/relay/epoll/icmp_linux.go":        relayEpoll,
	"pkg/proxy/relay/epoll/limits_linux.go":      relayEpoll,
	"pkg/proxy/relay/epoll/lookup_linux.go":      relayEpoll,
	"pkg/proxy/relay/epoll/loop_linux.go":        relayEpoll,
	"pkg/proxy/relay/epoll/plane_linux.go":       relayEpoll,
	"pkg/proxy/relay/epoll/silence_linux.go":     relayEpoll,
	"pkg/proxy/relay/epoll/tcp_linux.go":         relayEpoll,
	"pkg/proxy/relay/epoll/udp_linux.go":         relayEpoll,
	"pkg/proxy/connect/flows_linux.go":           proxyConnect,
	"pkg/proxy/connect/host_linux.go":            proxyConnect,
	"pkg/proxy/connect/kernel_linux.go":          proxyConnect,
	"pkg/proxy/connect/program_linux.go":         proxyConnect,
	"pkg/proxy/packets/host_linux.go":            "what rules of iptables need of the host; Windows has no iptables",
	"pkg/iptables/sctptest/socket_linux.go":      "raw sockets for tests of iptables; Windows has none",
	"pkg/proxy/relay/tuning/tuning_linux.go":     "the settings that the epoll plane wants; Windows has none of them",
	"pkg/proxy/relay/nstest/neighbours_linux.go": "network namespaces for tests; Windows has none",
	"pkg/proxy/relay/nstest/nstest_linux.go":     "network namespaces for tests; Windows has none",
	"pkg/proxy/relay/addresses/answers_linux.go": "a part of addresses_linux.go; Windows opens no connection with an address that is not its own",
	"pkg/proxy/relay/addresses/guard_linux.go":   "a part of addresses_linux.go; Windows has neither ranges of local addresses nor the question that they raise",
	"pkg/proxy/relay/addresses/policy_linux.go":  "a part of addresses_linux.go; Windows has no rules of routing by port, and holds whole addresses",
	"pkg/proxy/relay/addresses/range_linux.go":   "a part of addresses_linux.go; Windows has neither ranges of local addresses nor the question that they raise",
}

const proxyConnect = "programs at cgroups of Linux; Windows' switch has load balancers (hnslb)"

const relayEpoll = "the plane of Linux; that of goroutines is Windows' and runs here too"

func TestSystemFiles(t *testing.T) {
	all := load(t)
	exists := map[string]bool{}
	for _, s := range all {
		exists[s.path] = true
	}
	excuse := exceptions(lonely)
	for _, s := range all {
		stem := strings.TrimSuffix(strings.TrimSuffix(s.base, ".go"), "_test")
		for _, bad := range []string{"_other", "_others", "_unsupported", "_stub", "_stubs", "_unix", "_posix", "_fallback", "_notlinux", "_nonwindows"} {
			if strings.HasSuffix(stem, bad) {
				t.Errorf("%s: the systems are linux and windows, not %q", s.path, bad)
			}
		}
		switch {
		case len(s.systems) == 0:
			t.Errorf("%s is not built for any system", s.path)
		case len(s.systems) == 1 && s.suffix == "" && !under(s.dir, "test", "hack"):
			t.Errorf("%s is built for %s only: put the system into the file's name instead of a build tag", s.path, s.systems[0])
		case s.suffix == "" || s.test:
		case !under(s.dir, paired...):
			t.Errorf("%s: package %s must not have files for one system; make the system a value", s.path, s.dir)
		default:
			other := systems[1-slices.Index(systems, s.suffix)]
			if twin := strings.TrimSuffix(s.path, s.suffix+".go") + other + ".go"; !exists[twin] && !excuse.has(s.path) {
				t.Errorf("%s has no twin %s", s.path, twin)
			}
		}
	}
	excuse.done(t)
}

func TestRuntimeGOOS(t *testing.T) {
	for _, s := range load(t) {
		if s.test || under(s.dir, "pkg/host", "cmd/kubelet/app", "cmd/kube-proxy/app", "hack", "test") {
			continue
		}
		for _, position := range uses(s, "runtime", "GOOS") {
			t.Errorf("%s: only pkg/host and cmd/*/app may use runtime.GOOS; pass a value instead", position)
		}
	}
}

// sleepers may call time.Sleep.
var sleepers = map[string]string{
	"build/images/sample/net.go": "a sample for users, not part of the programs",
	"pkg/docker/logs/files.go":   "between the renames of an engine that rotates a log, which is not announced",
}

func TestSleep(t *testing.T) {
	excuse := exceptions(sleepers)
	for _, s := range load(t) {
		if s.test || under(s.dir, "test", "hack") {
			continue
		}
		if found := uses(s, "time", "Sleep"); len(found) > 0 && !excuse.has(s.path) {
			t.Errorf("%s: wait for an event instead of time.Sleep", strings.Join(found, ", "))
		}
	}
	excuse.done(t)
}

// uses returns the positions of pkg.name in the code of s.
func uses(s *source, pkg, name string) (positions []string) {
	ast.Inspect(s.syntax, func(node ast.Node) bool {
		if selector, ok := node.(*ast.SelectorExpr); ok && selector.Sel.Name == name {
			if x, ok := selector.X.(*ast.Ident); ok && x.Name == pkg {
				positions = append(positions, s.positions.Position(node.Pos()).String())
			}
		}
		return true
	})
	return positions
}

func TestPackageComments(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range load(t) {
		if s.test {
			continue
		}
		found := comments[s.dir]
		if s.syntax.Doc != nil {
			found = append(found, s.path)
			first := strings.TrimPrefix(s.syntax.Doc.Text(), "\n")
			if name := s.syntax.Name.Name; name != "main" && !strings.HasPrefix(first, "Package "+name+" ") {
				t.Errorf("%s: the package comment begins with %q, want \"Package %s ...\"", s.path, strings.SplitN(first, "\n", 2)[0], name)
			}
		}
		comments[s.dir] = found
	}
	for dir, found := range comments {
		if len(found) != 1 {
			t.Errorf("%s has %d package comments %v, want exactly one", dir, len(found), found)
		}
	}
}

// longFiles may have more than 500 lines.
var longFiles = map[string]string{}

// longFunctions may have more than 80 lines.
var longFunctions = map[string]string{}

func TestLengths(t *testing.T) {
	files, functions := exceptions(longFiles), exceptions(longFunctions)
	for _, s := range load(t) {
		if s.lines > 500 && !files.has(s.path) {
			t.Errorf("%s has %d lines, want at most 500", s.path, s.lines)
		}
		if s.dir == "cmd/kubelet" || s.dir == "cmd/kube-proxy" {
			if s.lines > 40 {
				t.Errorf("%s has %d lines, want at most 40 in a main file", s.path, s.lines)
			}
			if s.suffix != "" {
				t.Errorf("%s: a main file must be for both systems", s.path)
			}
		}
		if s.test { // tables in tests are data
			continue
		}
		for _, declaration := range s.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || function.Body == nil {
				continue
			}
			length := s.positions.Position(function.End()).Line - s.positions.Position(function.Pos()).Line + 1
			if name := s.path + " " + function.Name.Name; length > 80 && !functions.has(name) {
				t.Errorf("%s has %d lines, want at most 80", name, length)
			}
		}
	}
	files.done(t)
	functions.done(t)
}

// longWindowsFunctions may have more than 25 lines although only Windows compiles them.
var longWindowsFunctions = map[string]string{}

// TestWindowsFunctions: code that runs only under Wine, and on machines that we do not have, is limited to system
// calls.
func TestWindowsFunctions(t *testing.T) {
	excuse := exceptions(longWindowsFunctions)
	for _, s := range load(t) {
		if s.test || !slices.Equal(s.systems, []string{"windows"}) || !under(s.dir, "pkg", "cmd") {
			continue
		}
		for _, declaration := range s.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			length := s.positions.Position(function.End()).Line - s.positions.Position(function.Pos()).Line + 1
			if name := s.path + " " + function.Name.Name; length > 25 && !excuse.has(name) {
				t.Errorf("%s has %d lines, want at most 25: move its decisions into a file for both systems", name, length)
			}
		}
	}
	excuse.done(t)
}

func TestMainFilesStandAlone(t *testing.T) {
	mains := map[string]int{}
	for _, s := range load(t) {
		if (s.dir == "cmd/kubelet" || s.dir == "cmd/kube-proxy") && !s.test {
			mains[s.dir]++
		}
	}
	for _, dir := range []string{"cmd/kubelet", "cmd/kube-proxy"} {
		if mains[dir] != 1 {
			t.Errorf("%s has %d files, want one, because \"go build FILE\" compiles only that file", dir, mains[dir])
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range load(t) {
		for _, name := range []string{s.syntax.Name.Name, path.Base(s.dir)} {
			if slices.Contains([]string{"util", "utils", "common", "types", "helper", "helpers", "misc", "shared", "base"}, name) && !seen[s.dir] {
				seen[s.dir] = true
				t.Errorf("%s: name the package for what it does, not %q", s.dir, name)
			}
		}
		for _, declaration := range s.syntax.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil && function.Name.Name == "init" && under(s.dir, "pkg", "cmd") {
				t.Errorf("%s: no init functions", s.positions.Position(function.Pos()))
			}
		}
	}
}

func TestUnfinished(t *testing.T) {
	mark := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)
	for _, s := range load(t) {
		for _, group := range s.syntax.Comments {
			for _, comment := range group.List {
				if found := mark.FindString(comment.Text); found != "" {
					t.Errorf("%s: %s: do it now, or open an issue", s.positions.Position(comment.Pos()), found)
				}
			}
		}
	}
}

func TestDocsNameEveryPackage(t *testing.T) {
	text := read(t, "docs/design/architecture.md")
	seen := map[string]bool{}
	for _, s := range load(t) {
		name, ok := strings.CutPrefix(s.dir, "pkg/")
		if !ok || s.test || seen[name] {
			continue
		}
		seen[name] = true
		row := fmt.Sprintf(`\|\s*%s\s*\|`, regexp.QuoteMeta(name))
		if double(s.dir) {
			row = "`" + regexp.QuoteMeta(name) + "`"
		}
		if !regexp.MustCompile(row).MatchString(text) {
			t.Errorf("docs/design/architecture.md does not say which arrow package %s belongs to", name)
		}
	}
}

func TestDocsNameEveryModule(t *testing.T) {
	text := read(t, "docs/reference/dependencies.md")
	seen := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+/\S+) v\S+$`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		seen[match[1]] = true // an indirect dependency has a comment after its version
		if !strings.Contains(text, "| "+match[1]+" |") {
			t.Errorf("docs/reference/dependencies.md does not say what %s is for", match[1])
		}
	}
	if len(seen) < 10 {
		t.Errorf("found only %d direct modules in go.mod: fix how this test reads it", len(seen))
	}
}
